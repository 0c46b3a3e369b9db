# Made by docs/render_public.py.

from elastic_core.warden.channel import Channel as Channel, Message as Message, close_all as close_all
from elastic_core.warden.client import CLOSING as CLOSING, SpawnRequest as SpawnRequest, Warden as Warden
from elastic_core.warden.linux import Process as Process, all_pids as all_pids, become_subreaper as become_subreaper, catches as catches, descendants as descendants, die_once_adopted as die_once_adopted, die_with_parent as die_with_parent, ignore_requests_to_end as ignore_requests_to_end, kill as kill, read_proc as read_proc, run_nanoseconds as run_nanoseconds, running_process as running_process, signal_group as signal_group, stat_fields as stat_fields, state_of as state_of, subreaping as subreaping, waits_in as waits_in
from elastic_core.warden.messages import Exited as Exited, SpawnFailed as SpawnFailed, Spawned as Spawned, StopCompleted as StopCompleted, Stuck as Stuck, WardenDied as WardenDied, WardenEvent as WardenEvent
from elastic_core.warden.spawn import take_descriptors as take_descriptors, volunteer_for_oom as volunteer_for_oom

NAMES: dict[str, str]
