"""Which accelerators the environment leaves visible, how many workers they make, and which worker gets which.

``docs/migrating.md`` says what each word of ``--nproc_per_node`` counts, and how torchrun counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_core.errors import UsageError
from elastic_devices.inventory import AMD_PLACE, INTEL_PLACE, NVIDIA_PLACE, NVML, Device, Machine, amd, intel, nvidia


@dataclass(frozen=True, slots=True)
class Visible:
    """An accelerator that the workers' environment shows."""

    name: str  # the value of the variable of visible devices that leaves only this one
    device: Device  # the accelerator, or the GPU that it is a part of


def count_workers(word: str, environ: Mapping[str, str], machine: Machine) -> int:
    """Return the number of workers that ``--nproc_per_node=auto``, ``gpu`` or ``xpu`` means here, at least 1.

    Raises:
        UsageError: Nothing of its kind is visible.
    """
    if word == "auto":
        return len(gpus(environ, machine)) or len(_discrete(environ, machine)) or len(machine.affinity())
    count = len(gpus(environ, machine) if word == "gpu" else xpus(environ, machine))
    if count == 0:
        raise _none(word, environ, machine)
    return count


def accelerators(environ: Mapping[str, str], machine: Machine) -> tuple[Visible, ...]:
    """Return the workers' accelerators, in the order of their local ranks; () for a node with only CPUs."""
    return gpus(environ, machine) or xpus(environ, machine)


def gpus(environ: Mapping[str, str], machine: Machine) -> tuple[Visible, ...]:
    """Return the GPUs that torch's ``cuda`` devices are, in order."""
    if found := nvidia(machine):
        return select(_listed(environ, machine), found)
    # ROCr, the lower layer, filters first; HIP filters the remaining devices, and numbers them anew.
    left = [seen.device for seen in select(environ.get("ROCR_VISIBLE_DEVICES"), amd(machine))]
    return select(_listed(environ, machine), left)


def xpus(environ: Mapping[str, str], machine: Machine) -> tuple[Visible, ...]:
    """Return the GPUs that torch's ``xpu`` devices are, in order.

    Level Zero makes a device of each tile, or with ``ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE`` of each card.
    """
    composite = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"
    found = [device for device in intel(machine) for _ in range(1 if composite else device.tiles)]
    seen = _masked(environ.get("ZE_AFFINITY_MASK", ""), found)
    return tuple(one for one in seen if not one.device.integrated) or seen


def visible_devices(local_rank: int, environ: Mapping[str, str], machine: Machine) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that leaves a worker only its own GPU, as device 0 (its LOCAL_RANK is
    then 0).

    As in torchrun, it is the entry at ``local_rank`` in the agent's list, as it is written there, or without a list the
    number ``local_rank``. Unlike torchrun this knows the devices: a list that hides all of them stays as it is, for
    workers on CPUs, and a worker without a device is an error.

    Raises:
        UsageError: There is no such GPU.
    """
    if seen := gpus(environ, machine):
        names = [one.name for one in seen]
    else:
        listed = _listed(environ, machine)
        if listed is None:
            return str(local_rank)
        if nvidia(machine) or amd(machine) or not listed.strip():
            return listed
        names = [name.strip() for name in listed.split(",")]  # GPUs of an unknown kind
    return _own(names, local_rank, "GPU", environ)


def only_device(local_rank: int, environ: Mapping[str, str], machine: Machine) -> dict[str, str]:
    """Return the variables that leave a worker only its own accelerator, as device 0.

    torchrun sets CUDA_VISIBLE_DEVICES only. HIP ignores it if HIP_VISIBLE_DEVICES is set, and Level Zero always does.

    Raises:
        UsageError: There is no such accelerator.
    """
    own = visible_devices(local_rank, environ, machine)
    variables = {"CUDA_VISIBLE_DEVICES": own}
    if "HIP_VISIBLE_DEVICES" in environ and not nvidia(machine):
        variables["HIP_VISIBLE_DEVICES"] = own
    if (discrete := _discrete(environ, machine)) and not gpus(environ, machine):
        variables["ZE_AFFINITY_MASK"] = _own([one.name for one in discrete], local_rank, "xpu", environ)
    return variables


def select(listed: str | None, devices: Sequence[Device]) -> tuple[Visible, ...]:
    """Return the devices that a list as in CUDA_VISIBLE_DEVICES leaves, in its order; None, no list, leaves all.

    Entries are numbers, or beginnings of UUIDs (``GPU-…``, ``MIG-…``) that fit one device only; all are of the first
    one's kind. As in CUDA and torch, the first that names no device ends the list, and a device named twice empties it.
    Sources: the CUDA programming guide, "CUDA Environment Variables"; ``torch.cuda._parse_visible_devices``.
    """
    if listed is None:
        return tuple(Visible(str(number), device) for number, device in enumerate(devices))
    chosen: dict[str, Visible] = {}
    for entry in (part.strip() for part in listed.split(",")):
        match = _find(entry, devices)
        if match is None or _kind(entry) != _kind(listed.strip()):
            break
        identity, device = match
        if identity in chosen:
            return ()
        chosen[identity] = Visible(entry, device)
    return tuple(chosen.values())


def _listed(environ: Mapping[str, str], machine: Machine) -> str | None:
    """Return the list of visible GPUs: HIP takes CUDA's if HIP_VISIBLE_DEVICES is not set."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    return listed if nvidia(machine) else environ.get("HIP_VISIBLE_DEVICES", listed)


def _discrete(environ: Mapping[str, str], machine: Machine) -> list[Visible]:
    return [one for one in xpus(environ, machine) if not one.device.integrated]


def _kind(entry: str) -> str:
    return entry[:4] if entry.startswith(("GPU-", "MIG-")) else "number"


def _find(entry: str, devices: Sequence[Device]) -> tuple[str, Device] | None:
    """Return the only device, or part of one, that an entry fits, with its unique name; None if there is none."""
    match _kind(entry):
        case "number":
            digits = re.match(r"\+?\d+", entry)  # CUDA reads it with strtoul, which ignores the rest
            number = int(digits[0]) if digits else len(devices)
            return (str(number), devices[number]) if number < len(devices) else None
        case "GPU-":
            fits = [(device.uuid, device) for device in devices if device.uuid.startswith(entry)]
        case _:
            fits = [(part, device) for device in devices for part in device.partitions if part.startswith(entry)]
            # Before driver 470 its name was MIG-GPU-<the GPU's UUID>/<instance>/<instance>.
            old = entry[len("MIG-") :].partition("/")[0]
            fits += [(entry, device) for device in devices if device.uuid and device.uuid == old]
    return fits[0] if len(fits) == 1 else None


def _masked(mask: str, devices: Sequence[Device]) -> tuple[Visible, ...]:
    """Return the devices that ZE_AFFINITY_MASK leaves, in their order: a set of numbers, perhaps with tiles.

    Other numbers are ignored; an empty mask masks nothing. Source: the Level Zero specification, "Affinity Mask".
    """
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    if not entries:
        return select(None, devices)
    parts: dict[int, list[str]] = {}
    for entry in entries:
        root = entry.partition(".")[0]
        if root.isdecimal() and int(root) < len(devices):
            parts.setdefault(int(root), []).append(entry)
    return tuple(Visible(",".join(parts[number]), devices[number]) for number in sorted(parts))


def _own(names: Sequence[str], local_rank: int, kind: str, environ: Mapping[str, str]) -> str:
    if local_rank < len(names):
        return names[local_rank]
    raise UsageError(
        f"--virtual_local_rank: there is no {kind} for local rank {local_rank}; {_shown(len(names), environ)}.",
        hint=f"Give --nproc_per_node={len(names)}, or let more be visible.",
    )


def _none(kind: str, environ: Mapping[str, str], machine: Machine) -> UsageError:
    """Return the error that says what was looked for, and what the machine has besides hidden devices."""
    if kind == "gpu":
        there = (
            f"NVIDIA's by {NVML} and in /{NVIDIA_PLACE} (there: {len(nvidia(machine))}), "
            f"AMD's in /{AMD_PLACE} (there: {len(amd(machine))})"
        )
    else:
        there = f"Intel's in /{INTEL_PLACE} (there: {len(intel(machine))})"
    return UsageError(
        f"--nproc_per_node {kind!r}: none was found. Looked for {there}; {_shown(0, environ)}.",
        hint="Give a number, or cpu, or auto, which counts CPUs where there is nothing else.",
    )


def _shown(count: int, environ: Mapping[str, str]) -> str:
    """Return ``2 visible, with CUDA_VISIBLE_DEVICES='0,1'``."""
    filters = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
    given = [f"{name}={environ[name]!r}" for name in filters if name in environ]
    return f"{count} visible, with {', '.join(given)}" if given else f"{count} visible"
