# Made by docs/render_public.py.

from elastic_core.warden.channel import Channel as Channel, Message as Message, close_all as close_all
from elastic_core.warden.client import CLOSING as CLOSING, SpawnRequest as SpawnRequest, Warden as Warden
from elastic_core.warden.linux import become_subreaper as become_subreaper, die_once_adopted as die_once_adopted, die_with_parent as die_with_parent, ignore_requests_to_end as ignore_requests_to_end, kill as kill, signal_group as signal_group, subreaping as subreaping
from elastic_core.warden.messages import Exited as Exited, SpawnFailed as SpawnFailed, Spawned as Spawned, StopCompleted as StopCompleted, Stuck as Stuck, WardenDied as WardenDied, WardenEvent as WardenEvent
from elastic_core.warden.spawn import take_descriptors as take_descriptors, volunteer_for_oom as volunteer_for_oom

NAMES: dict[str, str]
