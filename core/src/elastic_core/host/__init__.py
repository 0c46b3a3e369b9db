"""Facts about this machine, and what the agent takes from it.

* ``identity``: the names of the host and of its boot, and the versions that must match between nodes. ``addresses``:
  where other nodes reach it, and a port that is reserved for the workers' store.
* ``processes``: the processes of this machine. ``own_process``: the title of the own one, its allocator and its
  end.
* ``terminal``: makes foreign text safe to print.
"""

from elastic_core import names_of

NAMES = {
    "host.addresses": "ANY_FORM HeldPort LOOPBACK advertised_address endpoint_host parts says_loopback",
    "host.identity": "boot_id host_name installed_versions",
    "host.own_process": "Title overwrite without_passwords",
    "host.processes": "Process all_pids catches descendants read_proc run_nanoseconds running_process stat_fields "
    "state_of waits_in",
    "host.terminal": "GREEN Paint RED YELLOW has_colours painter plain printable",
}

__getattr__ = names_of(__name__, NAMES)
