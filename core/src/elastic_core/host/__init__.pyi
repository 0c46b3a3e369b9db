# Made by docs/render_public.py.

from elastic_core.host.addresses import ANY_FORM as ANY_FORM, HeldPort as HeldPort, LOOPBACK as LOOPBACK, advertised_address as advertised_address, endpoint_host as endpoint_host, parts as parts, says_loopback as says_loopback
from elastic_core.host.identity import boot_id as boot_id, host_name as host_name, installed_versions as installed_versions
from elastic_core.host.own_process import Title as Title, overwrite as overwrite, without_passwords as without_passwords
from elastic_core.host.processes import Process as Process, all_pids as all_pids, catches as catches, descendants as descendants, read_proc as read_proc, run_nanoseconds as run_nanoseconds, running_process as running_process, stat_fields as stat_fields, state_of as state_of, waits_in as waits_in
from elastic_core.host.terminal import GREEN as GREEN, Paint as Paint, RED as RED, YELLOW as YELLOW, has_colours as has_colours, painter as painter, plain as plain, printable as printable

NAMES: dict[str, str]
