# Made by docs/render_public.py.

from elastic_core.host.devices.inventory import amd as amd, nvidia as nvidia
from elastic_core.host.devices.machine import Device as Device, Machine as Machine
from elastic_core.host.devices.visible import gpus as gpus, select as select

NAMES: dict[str, str]
