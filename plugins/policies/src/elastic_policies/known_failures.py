"""Failure texts that are known: what each means, whether another try can help, and what to do about it.

:data:`KNOWN_FAILURES` is one table, most specific row first. :func:`recognize` searches the text of an incident for it,
:func:`explain` also knows exception types and signals.

Everything here is data and pure functions. A search costs a fraction of a millisecond, since a pattern is compiled only
where the text has its beginning.
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.incidents import (
    BROKEN_SCRIPT,
    Explanation,
    FailureClass,
    Incident,
    IncidentKind,
    ended_by_sigterm,
    has_wrong_arguments,
)


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One row of the table."""

    name: str  # the failure in plain words
    failure_class: FailureClass  # whether another try can help
    pattern: str
    """A regular expression in lower case. Every repeat is bounded, so that a search takes linear time, and every
    alternative begins with literal text, which is looked for first.
    """
    advice: str  # what to do, in one sentence
    source: str  # where the text is documented, or reported with its cause
    system: bool = False
    """The text comes from the kernel, the GPU driver or the scheduler, or is as unmistakable. It counts anywhere in the
    detail, and for a worker that was killed.
    """
    host: bool = False  # it can be the fault of the worker's host, so that the job may do better without this host


NOT_LOADED = "a model or a checkpoint could not be loaded"
_XIDS = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_XID = r"nvrm: xid \([^)\n]{1,40}\): "  # NVRM: Xid (PCI:0000:3b:00): 79, pid=…

KNOWN_FAILURES: tuple[KnownFailure, ...] = (
    # The kernel, the GPU driver and the scheduler -------------------------------------------------------------------
    KnownFailure(
        "the host ran out of memory",
        FailureClass.INFRASTRUCTURE,
        r"out of memory: killed process|invoked oom-killer|oom[-_]kill event|oom_kill [1-9]|oom killed"
        r"|cgroup out-of-memory handler",
        "Lower num_workers, prefetching or what the dataset holds in memory, or raise the job's memory limit.",
        "https://github.com/pcyin/tranX/issues/41",
        system=True,
        host=True,
    ),
    KnownFailure(
        "the scheduler took the node or ended the job",
        FailureClass.PREEMPTION,
        r"cancelled at [0-9t:-]{1,30} due to (?:preemption|job requeue|time limit)",
        "Requeue the job (sbatch --requeue), and save a checkpoint when SIGTERM comes.",
        "https://github.com/SystemsGenetics/GEMmaker/issues/233",
        system=True,
    ),
    KnownFailure(
        "the scheduler lost a node",
        FailureClass.INFRASTRUCTURE,
        r"due to node failure|error: node failure on ",
        "Requeue the job without this node, and report it: sinfo -R and the log of slurmctld have the reason.",
        "https://github.com/huggingface/m4-logs/tree/main/tr_141-hanging",
        system=True,
    ),
    KnownFailure(
        "the driver lost the GPU",
        FailureClass.INFRASTRUCTURE,
        _XID + r"(?:79|119|120)\b|fallen off the bus|gpu is lost",
        "Take the node out of service: the GPU answers again only after a reset or a reboot, if at all.",
        _XIDS,
        system=True,
        host=True,
    ),
    KnownFailure(
        "an NVLink connection failed",
        FailureClass.INFRASTRUCTURE,
        _XID + r"(?:74|14[4-9]|150)\b|uncorrectable nvlink error|cudaerrornvlinkuncorrectable",
        "Go on with another node and reset this one's GPUs; where it comes back, a link or switch has to be replaced.",
        _XIDS,
        system=True,
        host=True,
    ),
    KnownFailure(
        "the GPU's memory has an uncorrectable error",
        FailureClass.INFRASTRUCTURE,
        _XID + r"(?:48|63|64|94|95)\b|uncorrectable ecc error|cudaerroreccuncorrectable",
        "Go on with another node, reset this GPU, and have it replaced where nvidia-smi -q -d ROW_REMAPPER "
        "shows a failure.",
        _XIDS,
        system=True,
        host=True,
    ),
    KnownFailure(
        "a GPU kernel accessed memory that it must not access",
        FailureClass.FRAMEWORK,
        _XID + r"(?:13|31|43)\b|illegal memory access was encountered|unspecified launch failure"
        r"|misaligned address|cudaerrorillegaladdress|cudaerrorlaunchfailure",
        "Run once with CUDA_LAUNCH_BLOCKING=1 to see the operation; if it happens on one host only, suspect its GPU.",
        _XIDS,
        system=True,
    ),
    # NCCL -----------------------------------------------------------------------------------------------------------
    KnownFailure(
        "NCCL: an InfiniBand or RoCE connection failed",
        FailureClass.INFRASTRUCTURE,
        r"net/ibp? ?: ?got completion (?:from peer|error|with)",
        "Check the link and the routing between the two hosts of the line (ibstat, ib_write_bw); 12 is a timeout.",
        "https://github.com/NVIDIA/nccl/issues/1170",
        host=True,
    ),
    # Shared memory, data loaders -------------------------------------------------------------------------------------
    KnownFailure(
        "/dev/shm is full",
        FailureClass.INFRASTRUCTURE,
        r"unable to write to file </torch_|unexpected bus error encountered in worker|out of shared memory\. please"
        r"|insufficient shared memory|killed by signal: bus error|error while creating shared memory segment"
        r"|fatal python error: bus error",
        "Enlarge /dev/shm (docker --shm-size, a memory emptyDir in Kubernetes), or lower num_workers.",
        "https://github.com/pytorch/pytorch/issues/5040",
        host=True,
    ),
    KnownFailure(
        "a DataLoader worker was killed",
        FailureClass.FRAMEWORK,
        r"dataloader worker \(pid(?:\(s\))? [0-9, ]{1,100}\) (?:is killed by signal|exited unexpectedly)",
        "Lower num_workers if dmesg shows the out-of-memory killer; num_workers=0 shows an error of the dataset.",
        "https://github.com/pytorch/pytorch/issues/8976",
    ),
    KnownFailure(
        "the program asked for more memory than the host has",
        FailureClass.FRAMEWORK,
        r"defaultcpuallocator: (?:can't allocate|not enough) memory|\[errno 12\] cannot allocate memory"
        "|\nmemoryerror",
        "Lower what is allocated at once (batch, shard, checkpoint), or raise the job's memory limit.",
        "https://github.com/mxfold/mxfold2/issues/20",
    ),
    # CUDA -----------------------------------------------------------------------------------------------------------
    KnownFailure(
        "the GPU ran out of memory",
        FailureClass.FRAMEWORK,
        r"cuda out of memory|hip out of memory|cuda error: out of memory|cuda_error_out_of_memory",
        "Lower the batch size or sequence length, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; if the "
        "message names other processes, nvidia-smi shows them.",
        "https://github.com/pytorch/pytorch/issues/16417",
    ),
    KnownFailure(
        "an index or a label is out of range on the GPU",
        FailureClass.SCRIPT,
        r"device-side assert triggered",
        "Check labels against the number of classes and token ids against the vocabulary; CUDA_LAUNCH_BLOCKING=1 shows "
        "the line.",
        "https://github.com/layumi/Person_reID_baseline_pytorch/issues/372",
    ),
    KnownFailure(
        "CUDA was used before a fork",
        FailureClass.SCRIPT,
        r"cannot re-initialize cuda in forked subprocess",
        "Use the start method spawn or forkserver, or use no CUDA before DataLoader workers and processes start.",
        "https://github.com/vllm-project/vllm/issues/8893",
    ),
    KnownFailure(
        "PyTorch or an extension was built for another CUDA",
        FailureClass.SCRIPT,
        r"the detected cuda version \([0-9.]{1,12}\) mismatches|no kernel image is available",
        "Install builds of PyTorch and its extensions for this CUDA version and this GPU; torch.version.cuda tells it.",
        "https://github.com/open-mmlab/OpenPCDet/issues/1275",
    ),
    KnownFailure(
        "the NVIDIA driver does not fit",
        FailureClass.INFRASTRUCTURE,
        r"driver on your system is too old|cuda driver version is insufficient|driver/library version mismatch"
        r"|forward compatibility was attempted",
        "Compare nvidia-smi of this host with another's: the driver is too old, or was upgraded without a reboot.",
        "https://github.com/lllyasviel/Fooocus/issues/1313",
        host=True,
    ),
    KnownFailure(
        "a GPU is missing, or another process has it",
        FailureClass.INFRASTRUCTURE,
        r"busy or unavailable|no cuda-capable device|no cuda gpus are available|cuda error: unknown error",
        "Look at nvidia-smi on this host: a process of an earlier job may hold the GPU, or fewer GPUs are there than "
        "workers.",
        "https://github.com/pytorch/pytorch/issues/100691",
        host=True,
    ),
    # Storage --------------------------------------------------------------------------------------------------------
    KnownFailure(
        "a disk or a quota is full",
        FailureClass.INFRASTRUCTURE,
        r"no space left on device|disk quota exceeded|pytorchstreamwriter failed writing"
        r"|\. unexpected pos [0-9]{1,20} vs [0-9]",
        "Free space where checkpoints, logs and temporary files are (df -h, df -i, quota), then start the job again.",
        "https://github.com/hiyouga/LlamaFactory/issues/5155",
    ),
    KnownFailure(
        "a network file system lost a file",
        FailureClass.INFRASTRUCTURE,
        r"stale (?:nfs )?file handle|transport endpoint is not connected|\[errno 5\] input/output error",
        "Check the mount on this host (mount, dmesg); a file that another host replaced has to be opened again.",
        "https://github.com/huggingface/transformers/issues/9732",
        host=True,
    ),
    KnownFailure(
        "the object storage did not answer or refused the rate",
        FailureClass.INFRASTRUCTURE,
        r"an error occurred \((?:slowdown|internalerror|requesttimeout|serviceunavailable|throttl[a-z]{1,20}|50[0-9])\)"
        r"|code: slowdown|error 503: slow down|reduce your request rate|could not connect to the endpoint url"
        r"|botocore\.exceptions\.(?:connecttimeout|readtimeout|connectionclosed|incompleteread)",
        "Try again later; where it comes back, let fewer ranks read or write at once, and raise the client's retries.",
        "https://github.com/ray-project/deltacat/issues/51",
    ),
    KnownFailure(
        "the Hugging Face Hub refused the rate or was not reached",
        FailureClass.INFRASTRUCTURE,
        r"429 client error: too many requests|429 too many requests|couldn't connect to 'https://huggingface"
        r"|couldn't reach [^\n]{1,200} on the hub|cannot find the requested files in the (?:local|disk) cache",
        "Download once before the job (huggingface-cli download), set HF_HUB_OFFLINE=1, and log in for higher limits.",
        "https://github.com/huggingface/datasets/issues/7506",
    ),
    # Data and models ------------------------------------------------------------------------------------------------
    KnownFailure(
        "the dataset could not be built",
        FailureClass.FRAMEWORK,
        r"datasetgeneration(?:cast)?error",
        "The exception above it names the file or row; remove a half-written cache (HF_DATASETS_CACHE) before another "
        "try.",
        "https://github.com/nomic-ai/gpt4all/issues/524",
    ),
    KnownFailure(
        NOT_LOADED,
        FailureClass.FRAMEWORK,
        r"error\(s\) in loading state_dict|pytorchstreamreader failed|error while deserializing header"
        r"|pickle data was truncated|invalid load key, |eoferror: ran out of input",
        "The file is cut off, or of another model: resume from the checkpoint before, and write new ones under a "
        "temporary name.",
        "https://github.com/open-mmlab/mmdetection/issues/4835",
    ),
    KnownFailure(
        "the shapes of two tensors do not fit",
        FailureClass.SCRIPT,
        r"shapes cannot be multiplied|the size of tensor a \([0-9]{1,12}\) must match|is invalid for input of size",
        "The model's configuration and its input differ: compare the shapes in the message with the configuration.",
        "https://github.com/huggingface/trl/issues/567",
    ),
    # Network: what tells most first, since the others' texts can follow in the same message ---------------------------
    KnownFailure(
        "a port is taken",
        FailureClass.INFRASTRUCTURE,
        r"eaddrinuse|address already in use",
        "Let Elastic choose MASTER_PORT, or look with ss -ltnp for the process that has the port.",
        "https://github.com/pytorch/pytorch/issues/126510",
    ),
    KnownFailure(
        "NCCL: a collective timed out",
        FailureClass.PEER,
        r"caught collective operation timeout|operations have failed or timed out",
        "Find the rank that is behind, by its last step or with py-spy dump; NCCL waits for the slowest rank.",
        "https://github.com/pytorch/pytorch/issues/118369",
    ),
    KnownFailure(
        "NCCL: another rank has ended",
        FailureClass.PEER,
        r"ncclremoteerror|remote process exited|peer process terminated"
        r"|nccl communicator was aborted|timeout signal from another rank",
        "Look for the rank that failed first; if none did, the network between the hosts broke.",
        "https://github.com/NVIDIA/nccl/issues/2076",
    ),
    KnownFailure(
        "NCCL: a system call or a CUDA call failed",
        FailureClass.INFRASTRUCTURE,
        r"unhandled (?:system|cuda) error|ncclsystemerror|ncclunhandledcudaerror",
        "The line after 'Last error' tells it; set NCCL_DEBUG=WARN, and NCCL_SOCKET_IFNAME where hosts have several "
        "networks.",
        "https://github.com/NVIDIA/nccl/issues/975",
        host=True,
    ),
    KnownFailure(
        "a store on a port of the script's own",
        FailureClass.SCRIPT,
        "is not the launcher's store",  # elastic-causes writes it
        "This port is not the launcher's: use env://, or unset TORCHELASTIC_USE_AGENT_STORE before the first process "
        "group.",
        "https://github.com/pytorch/pytorch/pull/192113",
    ),
    KnownFailure(
        "gloo looked for a rank of another host on its own host",
        FailureClass.SCRIPT,
        "is the worker's own host, not a peer's",  # elastic-causes writes it
        "A host's name leads to a loopback address: mend /etc/hosts, or name the network's interface in "
        "GLOO_SOCKET_IFNAME.",
        "https://github.com/pytorch/gloo/issues/223",
    ),
    KnownFailure(
        "torch's store or gloo did not reach another rank",
        FailureClass.PEER,
        r"socket timeout|wait timeout after \d{1,9} ?ms|/\d{1,6} clients joined|failed to recv, got 0 bytes"
        r"|distnetworkerror|timed out waiting \d{1,12} ?ms for (send|recv)|application timeout caused pair"
        r"|gloo connectfullmesh failed|failed to pass monitoredb|successfully reached monitoredb",
        "Look for the rank that failed or never came; the hosts must reach each other and MASTER_ADDR on every port.",
        "https://github.com/OpenRLHF/OpenRLHF/issues/1040",
    ),
    KnownFailure(
        "a host or a service cannot be reached",
        FailureClass.INFRASTRUCTURE,
        r"temporary failure in name resolution|name or service not known|no route to host|network is unreachable"
        r"|connection refused|connection timed out|max retries exceeded with url"
        r"|50[0-4] server error: |http error 50[0-4]: |server error '50[0-4] ",
        "Check name resolution, routes and proxies of this host; trackers such as wandb also work offline.",
        "https://github.com/wandb/server/issues/83",
    ),
    KnownFailure(
        "the connection to another rank broke",
        FailureClass.PEER,
        r"connection (closed|reset) by peer|broken pipe",
        "Look for the rank that failed first; if none did, the network between the hosts broke.",
        "https://github.com/pytorch/pytorch/issues/75512",
    ),
    KnownFailure(
        "ranks are in different collectives",
        FailureClass.SCRIPT,
        r"is there a distributed collective mismatch in your code",
        "All ranks must call the same collectives in the same order, with tensors of equal sizes and types.",
        "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
    ),
    # Native code, whose message can have any other text in it ---------------------------------------------------------
    KnownFailure(
        "native code gave up",
        FailureClass.FRAMEWORK,
        r"double free|free\(\): invalid|corrupted size vs\. prev_size|malloc\(\): |munmap_chunk\(\)"
        r"|stack smashing detected|terminate called (?:after throwing|without an active exception)",
        "A native library has a defect or does not fit: compare versions with a working host, and keep a core dump.",
        "https://github.com/pytorch/pytorch/issues/50137",
    ),
)
"""All known failures. The first row whose pattern is found is the answer."""

_EXCEPTIONS: Mapping[FailureClass, str] = {
    FailureClass.SCRIPT: """
        ArgumentError CalledProcessError FileExistsError FileNotFoundError IndexError IsADirectoryError
        KeyError LookupError NameError NotADirectoryError NotImplementedError OSError PermissionError TypeError
        UnboundLocalError UsageError""",
    FailureClass.FRAMEWORK: """
        AcceleratorError ArithmeticError AssertionError AttributeError BrokenPipeError FloatingPointError MemoryError
        OutOfMemoryError OverflowError RecursionError RuntimeError StopIteration ValueError ZeroDivisionError""",
    FailureClass.INFRASTRUCTURE: """
        ClientConnectorError ClientOSError ConnectError ConnectTimeout ConnectTimeoutError ConnectionAbortedError
        ConnectionError ConnectionRefusedError ConnectionResetError DeadlineExceeded DistBackendError DistError
        DistNetworkError DistStoreError EndpointConnectionError MaxRetryError ProxyError ReadTimeout ReadTimeoutError
        RemoteDisconnected RemoteProtocolError SSLEOFError ServerDisconnectedError ServerTimeoutError
        ServiceUnavailable TimeoutError URLError gaierror""",
}
"""The class of an exception whose text is not known, by its type without the module."""
_BY_EXCEPTION: Mapping[str, FailureClass] = {
    **dict.fromkeys(BROKEN_SCRIPT, FailureClass.SCRIPT),
    **{name: failure_class for failure_class, names in _EXCEPTIONS.items() for name in names.split()},
}
_BY_SIGNAL: Mapping[int, FailureClass] = {
    signal.SIGKILL: FailureClass.INFRASTRUCTURE,  # mostly the out-of-memory killer
    signal.SIGBUS: FailureClass.INFRASTRUCTURE,  # mostly a full /dev/shm
    **dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU), FailureClass.PREEMPTION),
    **dict.fromkeys((signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV), FailureClass.FRAMEWORK),
}
"""The class of a signal that ended a worker, where no text tells more."""
_SHELL_SIGNAL_BASE = 128  # shells, and programs that handle a signal, exit with this and the signal's number

_OUTER_BAR = re.compile(r"\|(?![^()]*\))")
"""The bar between two alternatives of a whole pattern. After a bar in a group, the group's end is the next bracket."""
_LITERAL = re.compile(r"(?:(?:[^\\^$*+?{}\[\]|().]|\\\W)(?![*+?{]))+")
"""Characters that stand for themselves, also behind a backslash, and are not repeated."""


def explain(incident: Incident, text: str = "") -> Explanation:
    """Return the explanation of a failure; arguments as of the hook ``elastic_explain_failure``."""
    if incident.kind is IncidentKind.EXITED_EARLY:
        return Explanation()  # its message quotes the failure of a peer
    if (known := recognize(incident, text)) is not None:
        return Explanation(
            failure_class=known.failure_class, name=known.name, advice=known.advice, hosts_fault=known.host
        )
    found = _class_of(incident)
    unexplained = not incident.exception and (incident.exit_code is None or incident.exit_code < 0)
    by_host = unexplained and found in (FailureClass.INFRASTRUCTURE, FailureClass.UNKNOWN)
    return Explanation(failure_class=found, hosts_fault=by_host)


def recognize(incident: Incident, text: str = "") -> KnownFailure | None:
    """Return the first known failure that the texts of an incident show; None where none does."""
    own = f"{incident.message}\n{text}".lower()
    everywhere = f"{incident.message}\n{incident.detail}".lower()
    killed = _signal_of(incident) in (signal.SIGKILL, signal.SIGTERM)
    for known in KNOWN_FAILURES:
        if killed and not known.system:
            continue  # what the worker wrote before does not explain the signal
        if not _is_found(known.pattern, everywhere if known.system else own):
            continue
        if known.failure_class is not FailureClass.PEER or incident.follows_peer:
            return known
    return None


def _class_of(incident: Incident) -> FailureClass:
    """Return the class of a failure whose text is not known: by its signal or its exception type."""
    if has_wrong_arguments(incident):
        return FailureClass.SCRIPT
    by_signal = _BY_SIGNAL.get(_signal_of(incident))
    if by_signal is not None and incident.exit_code != -signal.SIGABRT:
        return by_signal  # an exception that it printed before did not end it
    by_exception = _BY_EXCEPTION.get(incident.exception.rpartition(".")[2])
    return by_exception or by_signal or FailureClass.UNKNOWN


def _is_found(pattern: str, text: str) -> bool:
    return any(
        prefix in text and (prefix == alternative or re.search(alternative, text) is not None)
        for prefix, alternative in alternatives_of(pattern)
    )


@functools.cache
def alternatives_of(pattern: str) -> tuple[tuple[str, str], ...]:
    """Return the alternatives of a pattern, each with the literal text with which it begins, or ''."""
    found = []
    for alternative in _OUTER_BAR.split(pattern):
        literal = _LITERAL.match(alternative)
        found.append((re.sub(r"\\(.)", r"\1", literal[0]) if literal is not None else "", alternative))
    return tuple(found)


def _signal_of(incident: Incident) -> int:
    """Return the signal that ended a worker, also as a shell reports it; 0 for none."""
    if ended_by_sigterm(incident):
        return signal.SIGTERM
    code = incident.exit_code or 0
    if code < 0:
        return -code
    return max(code - _SHELL_SIGNAL_BASE, 0)
