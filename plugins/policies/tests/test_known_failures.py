"""The table of known failures, against texts that were reported in public."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from elastic_causes.find import PEER_LOSS_PATTERNS, find_cause
from elastic_core.incidents import Explanation, FailureClass, Incident, IncidentKind
from elastic_policies.known_failures import KNOWN_FAILURES, KnownFailure, alternatives_of, explain

BY_NAME = {known.name: known for known in KNOWN_FAILURES}


@dataclass(frozen=True, slots=True)
class Sample:
    """The end of a worker's stderr, or of the kernel's log, as it was reported."""

    name: str  # of the row that it is to be recognized as
    source: str
    text: str
    exit_code: int = 1


def incident(text: str, exit_code: int = 1) -> Incident:
    """Make the incident that an agent makes of the stderr of a worker that records nothing."""
    cause = find_cause(exit_code, {}, text)
    return bare_incident(
        exit_code=exit_code,
        message=cause.message,
        exception=cause.exception,
        follows_peer=cause.follows_peer,
        detail=cause.detail,
        text=cause.text,
    )


def bare_incident(text: str = "", **facts: Any) -> Incident:
    """Make an incident of these facts and nothing else, with its explanation."""
    made = Incident(**{"kind": IncidentKind.WORKER_FAILED, "round": 1, "node_id": "n", "host": "h", **facts})
    return replace(made, explanation=explain(made, text))


GITHUB = "https://github.com/"
SAMPLES = [
    Sample(
        "the host ran out of memory",
        GITHUB + "pcyin/tranX/issues/41",
        "[2059991.491542] Out of memory: Killed process 25315 (python3) total-vm:53312244kB, anon-rss:31451456kB\n",
        -9,
    ),
    Sample(
        "the host ran out of memory",
        GITHUB + "docker/for-linux/issues/1001",
        "kernel: [  514.682838] Memory cgroup out of memory: Killed process 15617 (python3) total-vm:11892kB\n",
        -9,
    ),
    Sample(
        "the host ran out of memory",
        GITHUB + "brain-score/vision/pull/950",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=37205392.0. Some of your processes may have been "
        "killed by the cgroup out-of-memory handler.\n",
        137,
    ),
    Sample(
        "the host ran out of memory",
        GITHUB + "nextflow-io/nextflow/issues/5932",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been "
        "OOM Killed.\n",
        -9,
    ),
    Sample(
        "the program asked for more memory than the host has",
        GITHUB + "mxfold/mxfold2/issues/20",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)\n",
    ),
    Sample(
        "the scheduler took the node or ended the job",
        GITHUB + "SystemsGenetics/GEMmaker/issues/233",
        "slurmstepd: error: *** JOB 32391783 ON cn119 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***\n",
        -15,
    ),
    Sample(
        "the scheduler took the node or ended the job",
        GITHUB + "ZettaAI/zetta_utils/issues/671",
        "slurmstepd: error: *** STEP 494583.0 ON ... CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***\n",
        -15,
    ),
    Sample(
        "the scheduler lost a node",
        GITHUB + "huggingface/m4-logs/tree/main/tr_141-hanging",
        "srun: error: Node failure on jean-zay-iam37\n"
        "slurmstepd: error: *** STEP 1943824.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***\n",
        -15,
    ),
    Sample(
        "the driver lost the GPU",
        GITHUB + "NVIDIA/NVSentinel/issues/155",
        "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus\n",
        -9,
    ),
    Sample(
        "the driver lost the GPU",
        GITHUB + "NVIDIA/NVSentinel/issues/155",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.\n",
        -6,
    ),
    Sample(
        "the driver lost the GPU",
        GITHUB + "NVIDIA/NVSentinel/pull/1270",
        "kernel: [16450076.435595] NVRM: Xid (PCI:0002:00:00): 119, pid=1582259, name=nvc:[driver], Timeout after 6s "
        "of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8).\n",
        -6,
    ),
    Sample(
        "an NVLink connection failed",
        GITHUB + "NVIDIA/NVSentinel/pull/516",
        "[449410.332316] NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected "
        "on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)\n",
        -6,
    ),
    Sample(
        "an NVLink connection failed",
        GITHUB + "MIC-DKFZ/nnUNet/issues/1519",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n",
    ),
    Sample(
        "the GPU's memory has an uncorrectable error",
        GITHUB + "stas00/ml-engineering/blob/master/compute/accelerator/nvidia/debug.md",
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to "
        "activate.\n",
        -6,
    ),
    Sample(
        "the GPU's memory has an uncorrectable error",
        GITHUB + "leptonai/gpud/pull/1174",
        "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error\n",
        -6,
    ),
    Sample(
        "the GPU's memory has an uncorrectable error",
        GITHUB + "kohya-ss/sd-scripts/issues/1434",
        "    exponent = exponent / (half_dim - downscale_freq_shift)\n"
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
    ),
    Sample(
        "a GPU kernel accessed memory that it must not access",
        GITHUB + "pytorch/pytorch/issues/51382",
        "[Fri Jan 29 23:42:34 2021] NVRM: Xid (PCI:0000:db:00): 31, pid=13641, Ch 00000008, intr 00000000. MMU Fault: "
        "ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n",
        -6,
    ),
    Sample(
        "a GPU kernel accessed memory that it must not access",
        GITHUB + "pytorch/pytorch/issues/51382",
        "[Wed Jan 27 23:04:35 2021] NVRM: Xid (PCI:0000:3d:00): 43, pid=35521, Ch 00000008\n",
        -6,
    ),
    Sample(
        "a GPU kernel accessed memory that it must not access",
        GITHUB + "leptonai/gpud/pull/46",
        "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp "
        "Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter\n",
        -6,
    ),
    Sample(
        "a GPU kernel accessed memory that it must not access",
        GITHUB + "xieyuser/GS-LIVM/issues/12",
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        -6,
    ),
    Sample(
        "a GPU kernel accessed memory that it must not access",
        GITHUB + "ultralytics/yolov5/issues/1752",
        "RuntimeError: CUDA error: unspecified launch failure\n"
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: unspecified launch failure\n",
        -6,
    ),
    Sample(
        "NCCL: an InfiniBand or RoCE connection failed",
        GITHUB + "NVIDIA/nccl/issues/1405",
        "kp-ddp-worker-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
        "10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n",
        -6,
    ),
    Sample(
        "NCCL: an InfiniBand or RoCE connection failed",
        GITHUB + "deepseek-ai/DeepEP/issues/106",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.20.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 172.21.17.89<38536> with error 5, opcode 48, len 32710, "
        "vendor err 249\n",
        -6,
    ),
    Sample(
        "/dev/shm is full",
        GITHUB + "pytorch/pytorch/issues/108861",
        "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit\n",
    ),
    Sample(
        "/dev/shm is full",
        GITHUB + "facebookresearch/mmf/issues/441",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
        "(shm).\n",
    ),
    Sample(
        "/dev/shm is full",
        GITHUB + "MIC-DKFZ/nnUNet/issues/2162",
        "    return super()._share_fd_cpu_(*args, **kwargs)\n"
        "RuntimeError: unable to write to file </torch_8289_606636967_0>: No space left on device (28)\n",
    ),
    Sample(
        "a DataLoader worker was killed",
        GITHUB + "pytorch/pytorch/issues/8976",
        "RuntimeError: DataLoader worker (pid 1817) is killed by signal: Killed. \n\n"
        "The above exception was the direct cause of the following exception:\n",
    ),
    Sample(
        "a DataLoader worker was killed",
        GITHUB + "DanielCoelho112/rlfold/issues/1",
        "RuntimeError: DataLoader worker (pid(s) 1458) exited unexpectedly\n",
    ),
    Sample(
        "the GPU ran out of memory",
        GITHUB + "pytorch/pytorch/issues/16417",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of "
        "23.65 GiB of which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. "
        "Of the allocated memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by PyTorch but "
        "unallocated.\n",
    ),
    Sample(
        "the GPU ran out of memory",
        GITHUB + "pytorch/pytorch/issues/16417",
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB "
        "already allocated; 9.28 GiB free; 4.68 MiB cached)\n",
    ),
    Sample(
        "an index or a label is out of range on the GPU",
        GITHUB + "layumi/Person_reID_baseline_pytorch/issues/372",
        "/pytorch/aten/src/THCUNN/ClassNLLCriterion.cu:108: cunn_ClassNLLCriterion_updateOutput_kernel: block: "
        "[0,0,0], thread: [0,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 379, in train_model\n'
        "    running_loss += loss.item() * now_batch_size\n"
        "RuntimeError: CUDA error: device-side assert triggered\n",
    ),
    Sample(
        "CUDA was used before a fork",
        GITHUB + "facebookresearch/pycls/issues/183",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
        "the 'spawn' start method\n",
    ),
    Sample(
        "PyTorch or an extension was built for another CUDA",
        GITHUB + "open-mmlab/OpenPCDet/issues/1275",
        "RuntimeError:\nThe detected CUDA version (11.8) mismatches the version that was used to compile\n"
        "PyTorch (11.7). Please make sure to use the same CUDA versions.\n",
    ),
    Sample(
        "PyTorch or an extension was built for another CUDA",
        GITHUB + "MouseLand/cellpose/issues/264",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
    ),
    Sample(
        "the NVIDIA driver does not fit",
        GITHUB + "lllyasviel/Fooocus/issues/1313",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
        "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx\n",
    ),
    Sample(
        "the NVIDIA driver does not fit",
        GITHUB + "nagadomi/nunif/issues/702",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version\n",
    ),
    Sample(
        "a GPU is missing, or another process has it",
        GITHUB + "pytorch/pytorch/issues/100691",
        "Traceback (most recent call last):\n"
        '  File "/data/check.py", line 17, in <module>\n'
        "    print(torch.rand(3,3).cuda())\n"
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
    ),
    Sample(
        "a GPU is missing, or another process has it",
        GITHUB + "xianlin7/SAMUS/issues/39",
        "RuntimeError: No CUDA GPUs are available\n",
    ),
    Sample(
        "a disk or a quota is full",
        GITHUB + "hiyouga/LlamaFactory/issues/5155",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "
        '"No space left on device" })\n',
    ),
    Sample(
        "a disk or a quota is full",
        GITHUB + "hiyouga/LlamaFactory/issues/1223",
        "RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/176: "
        "file write failed\n",
    ),
    Sample(
        "a network file system lost a file",
        GITHUB + "nanoporetech/taiyaki/issues/66",
        "    self.fh.write(s.encode('utf-8'))\nOSError: [Errno 116] Stale file handle\n",
    ),
    Sample(
        "the object storage did not answer or refused the rate",
        GITHUB + "ray-project/deltacat/issues/51",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the CompleteMultipartUpload "
        "operation\n",
    ),
    Sample(
        "the object storage did not answer or refused the rate",
        GITHUB + "ssl-hep/ServiceX/pull/958",
        "minio.error.S3Error: S3 operation failed; code: SlowDown, message: None, resource: None\n",
    ),
    Sample(
        "the object storage did not answer or refused the rate",
        GITHUB + "cockpit-project/bots/issues/3991",
        "urllib.error.HTTPError: HTTP Error 503: Slow Down\n",
    ),
    Sample(
        "the object storage did not answer or refused the rate",
        GITHUB + "red-hat-storage/ocs-ci/pull/12852",
        "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "
        '"https://ocs-ci-data.s3.SOMETHING.amazonaws.com/auth.yaml"\n',
    ),
    Sample(
        "the Hugging Face Hub refused the rate or was not reached",
        GITHUB + "embeddings-benchmark/mteb/issues/2659",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
        "https://huggingface.co/datasets/silky1708/GTZAN-Genre/resolve/5efdda59d0d185bfe17ada9b54d233349d0e0168/"
        "genres_original/jazz/jazz.00041.wav\n",
    ),
    Sample(
        "the Hugging Face Hub refused the rate or was not reached",
        GITHUB + "ZiqiaoPeng/SyncTalk/issues/162",
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached "
        "files and it looks like facebook/hubert-large-ls960-ft is not the path to a directory containing a file named "
        "config.json.\n",
    ),
    Sample(
        "the dataset could not be built",
        GITHUB + "hiyouga/ChatGLM-Efficient-Tuning/issues/374",
        "datasets.builder.DatasetGenerationError: An error occurred while generating the dataset\n",
    ),
    Sample(
        "a model or a checkpoint could not be loaded",
        GITHUB + "open-mmlab/mmdetection/issues/4835",
        "RuntimeError: [enforce fail at inline_container.cc:144] . PytorchStreamReader failed reading zip archive: "
        "failed finding central directory\n",
    ),
    Sample(
        "a model or a checkpoint could not be loaded",
        GITHUB + "songbingze/MLFF-GAN/issues/6",
        "RuntimeError: Error(s) in loading state_dict for CombinFeatureGenerator:\n"
        '\tMissing key(s) in state_dict: "LSNet.conv1.0.weight", "LSNet.conv1.0.bias"\n',
    ),
    Sample(
        "a model or a checkpoint could not be loaded",
        GITHUB + "lyogavin/airllm/issues/137",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n",
    ),
    Sample(
        "the shapes of two tensors do not fit",
        GITHUB + "huggingface/trl/issues/567",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (549x6656 and 1x22151168)\n",
    ),
    Sample(
        "a port is taken",
        GITHUB + "vllm-project/vllm/issues/39015",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    ),
    Sample(
        "NCCL: a collective timed out",
        GITHUB + "hiyouga/LlamaFactory/issues/7396",
        "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out.\n"
        "[rank0]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or "
        "timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.\n",
        -6,
    ),
    Sample(
        "NCCL: another rank has ended",
        GITHUB + "NVIDIA/nccl/issues/2076",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
        "remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgressOpt: Call to recv from 172....<33759> failed : Connection reset by peer\n",
    ),
    Sample(
        "NCCL: a system call or a CUDA call failed",
        GITHUB + "hkproj/pytorch-transformer-distributed/issues/1",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\nsocketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host\n",
    ),
    Sample(
        "a store on a port of the script's own",
        GITHUB + "pytorch/pytorch/pull/192113",
        "torch.distributed.DistNetworkError: The client socket has timed out after 9999ms while trying to connect to "
        "(127.0.0.1, 29999).\n127.0.0.1:29999 is not the launcher's store, which is at 127.0.0.1:29500\n",
    ),
    Sample(
        "gloo looked for a rank of another host on its own host",
        GITHUB + "pytorch/gloo/issues/223",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] timed out connecting: SO_ERROR: Connection "
        "refused, remote=[127.0.1.1]:60817\n127.0.1.1 is the worker's own host, not a peer's\n",
    ),
    Sample(
        "torch's store or gloo did not reach another rank",
        GITHUB + "OpenRLHF/OpenRLHF/issues/1040",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.\n",
    ),
    Sample(
        "torch's store or gloo did not reach another rank",
        GITHUB + "vllm-project/vllm/issues/19670",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(172.17.0.9, 46229).\n",
    ),
    Sample(
        "torch's store or gloo did not reach another rank",
        GITHUB + "sgl-project/sglang/issues/3226",
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
        "error\n",
    ),
    Sample(
        "a host or a service cannot be reached",
        GITHUB + "wandb/server/issues/83",
        "Traceback (most recent call last):\n  ...\nsocket.gaierror: [Errno -2] Name or service not known\n",
    ),
    Sample(
        "a host or a service cannot be reached",
        GITHUB + "huggingface/huggingface_hub/issues/2060",
        "requests.exceptions.HTTPError: 503 Server Error: Service Temporarily Unavailable for url: "
        "https://huggingface.co/timm/vit_large_patch16_384.augreg_in21k_ft_in1k/resolve/main/model.safetensors\n",
    ),
    Sample(
        "a host or a service cannot be reached",
        GITHUB + "MIC-DKFZ/TractSeg/issues/105",
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable\n",
    ),
    Sample(
        "the connection to another rank broke",
        GITHUB + "pytorch/pytorch/issues/75512",
        "    pg.recv([tensor], src, tag).wait()\n"
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer "
        "[18.25.6.30]:28048\n",
    ),
    Sample(
        "ranks are in different collectives",
        GITHUB + "pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
        "op.preamble.length <= op.nbytes. 1000 vs 12. Received data size doesn't match expected size. "
        "Is there a distributed collective mismatch in your code?\n",
        -6,
    ),
    Sample(
        "native code gave up",
        GITHUB + "pytorch/pytorch/issues/50137",
        "free(): double free detected in tcache 2\nAborted (core dumped)\n",
        -6,
    ),
    Sample(
        "native code gave up",
        GITHUB + "NVIDIA/semantic-segmentation/issues/33",
        "terminate called without an active exception\n",
        -6,
    ),
]


@pytest.mark.parametrize("sample", [pytest.param(sample, id=f"{sample.name}, {sample.source}") for sample in SAMPLES])
def test_a_reported_text_is_recognized(sample: Sample) -> None:
    found, row = incident(sample.text, sample.exit_code).explanation, BY_NAME[sample.name]
    assert (found.name, found.failure_class, found.advice) == (row.name, row.failure_class, row.advice)


def test_every_row_has_a_sample_a_source_and_one_sentence_of_advice() -> None:
    assert {sample.name for sample in SAMPLES} == set(BY_NAME)
    assert len(BY_NAME) == len(KNOWN_FAILURES)
    for known in KNOWN_FAILURES:
        assert known.source.startswith("https://"), known.name
        assert known.advice.endswith("."), known.name
        assert not re.search(r"\. [A-Z]", known.advice), known.name
        assert known.pattern == known.pattern.lower(), known.name
        re.compile(known.pattern)


def test_the_rows_of_peers_are_the_patterns_that_tell_a_follower() -> None:
    """elastic-causes and the table know the same texts."""
    rows = "|".join(known.pattern for known in KNOWN_FAILURES if known.failure_class is FailureClass.PEER)
    assert sorted(rows.split("|")) == sorted("|".join(PEER_LOSS_PATTERNS.values()).split("|"))
    for sample in SAMPLES:
        if BY_NAME[sample.name].failure_class is FailureClass.PEER:
            assert incident(sample.text, sample.exit_code).follows_peer, sample


# Order: which row is the answer where two are found ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "exit_code", "name"),
    [
        pytest.param(
            "RuntimeError: CUDA error: device-side assert triggered\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
            "NVRM: Xid (PCI:0000:3b:00): 94, pid=1, name=python, Contained ECC error\n",
            1,
            "the GPU's memory has an uncorrectable error",
            id="the driver's line before the exception",
        ),
        pytest.param(
            "RuntimeError: CUDA error: out of memory\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
            1,
            "the GPU ran out of memory",
            id="torch's hint at assertions is none",
        ),
        pytest.param(
            "OSError: [Errno 28] No space left on device: '/torch_1_2'\n",
            1,
            "a disk or a quota is full",
            id="a disk, since the file is not in angle brackets",
        ),
        pytest.param(
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error\nLast error:\n"
            "Error while creating shared memory segment /dev/shm/nccl-KiUTKl (size 9637888)\n",
            1,
            "/dev/shm is full",
            id="NCCL says which system call",
        ),
        pytest.param(
            "RuntimeError: Gloo connectFullMesh failed with [tcp/pair.cc:144] connect: Connection refused\n",
            1,
            "torch's store or gloo did not reach another rank",
            id="a rank before any host",
        ),
        pytest.param(
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries "
            "exceeded with url: /graphql (Caused by ProtocolError('Connection reset by peer'))\n",
            1,
            "a host or a service cannot be reached",
            id="a service before a rank",
        ),
        pytest.param(
            "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-04-20T09:09:37 DUE TO PREEMPTION ***\n"
            "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:1\n",
            1,
            "the scheduler took the node or ended the job",
            id="the scheduler before its consequence",
        ),
    ],
)
def test_the_row_that_tells_most_is_the_answer(text: str, exit_code: int, name: str) -> None:
    assert incident(text, exit_code).explanation.name == name


def test_the_cause_of_an_exception_counts_before_the_exception() -> None:
    raised = "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset"
    cause = "OSError: [Errno 28] No space left on device"
    failed = bare_incident(exit_code=1, message=raised, text=f"{raised}\n{cause}")
    assert failed.explanation.name == "a disk or a quota is full"


# What is not recognized ----------------------------------------------------------------------------------------------

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/user/project/train.py", line 212, in <module>
    main(parse_arguments())
  File "/home/user/project/train.py", line 180, in main
    loss = train_step(model, next(batches), optimizer)
  File "/home/user/project/train.py", line 97, in train_step
    return criterion(model(batch["input_ids"]), batch["labels"])
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
"""
TRAINING = "".join(
    [
        "[2026-01-12 08:00:01] INFO connecting to the store, timeout 600 s, port 29500, out of 8 ranks\n",
        "NCCL version 2.21.5+cuda12.4\n",
        "h:1:1 [0] NCCL INFO NET/IB : No device found.\n",
        "h:1:1 [0] NCCL INFO Connected all rings\n",
        "loading the dataset from s3://bucket/c4, memory limit 64 GiB, 8 DataLoader workers\n",
        *(
            f"step {step} | loss {11 - step / 25:.3f} | grad norm {1 + step % 7 / 10:.2f} | 5120 tokens/s | 71.2 GiB\n"
            for step in range(190)
        ),
        "saved checkpoint-190 (2.1 GiB) in 3.2 s; 412 GiB left on device\n",
        "UserWarning: The given buffer is not writable\n",
        "evaluation: perplexity 12.7, killed 0 of 0 signals, retries 0\n",
        "{'loss': 1.93, 'grad_norm': 0.41, 'learning_rate': 2.9e-05, 'epoch': 0.31}\n",
        " 31%|###1      | 190/613 [12:04<26:53,  3.81s/it]\n",
    ]
)


@pytest.mark.parametrize(
    ("message", "failure_class"),
    [
        ("ValueError: expected 3 values, got 4", FailureClass.FRAMEWORK),
        ("KeyError: 'labels'", FailureClass.SCRIPT),
        ("MyError: the third stage did not converge", FailureClass.UNKNOWN),
        ("AssertionError", FailureClass.FRAMEWORK),
        ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://a/503", FailureClass.UNKNOWN),
        ("http.client.RemoteDisconnected: Remote end closed without response", FailureClass.INFRASTRUCTURE),
        ("google.api_core.exceptions.ServiceUnavailable: 503 of bucket b", FailureClass.INFRASTRUCTURE),
        ("aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", FailureClass.INFRASTRUCTURE),
    ],
)
def test_an_ordinary_exception_is_not_recognized(message: str, failure_class: FailureClass) -> None:
    failed = incident(f"{TRAINING}{TRACEBACK}{message}\n")
    assert failed.message == message
    assert (failed.explanation.name, failed.explanation.advice) == ("", "")
    assert failed.failure_class is failure_class


@pytest.mark.parametrize("exit_code", [1, 3, -6, -9, -11, -15])
def test_two_hundred_lines_of_training_are_not_recognized(exit_code: int) -> None:
    assert len(TRAINING.splitlines()) == 200
    lines = TRAINING.splitlines(keepends=True)
    for start in range(0, 200, 25):
        assert not incident("".join(lines[start : start + 25]), exit_code).explanation.name


@pytest.mark.parametrize(
    "survived",
    [
        "[W1124 08:00:00 socket.cpp:697] [c10d] The client socket has failed to connect: Connection refused\n",
        "urllib3: Retrying after connection broken by 'NewConnectionError: Temporary failure in name resolution'\n",
        "CUDA out of memory. Tried to allocate 2.00 GiB: skipping this batch\n",
        "WARNING botocore: An error occurred (SlowDown) when calling the GetObject operation, retrying\n",
    ],
)
@pytest.mark.parametrize("exit_code", [1, -9, -15])
def test_trouble_that_the_program_survived_is_not_its_failure(survived: str, exit_code: int) -> None:
    own = f"{TRACEBACK}ValueError: nan\n" if exit_code == 1 else ""
    assert not incident(survived + TRAINING[-500:] + own, exit_code).explanation.name


def test_lines_that_the_process_writes_while_it_ends_are_not_its_failure() -> None:
    after = "[rank0]:[W1124 08:00:00.1 TCPStore.cpp:125] recvValue failed on SocketImpl: Connection reset by peer\n"
    prefixed = "".join(f"[rank0]: {line}\n" for line in f"{TRACEBACK}ValueError: nan".splitlines())
    assert not incident(prefixed + after).explanation.name


def test_lines_of_an_exception_after_its_first_count() -> None:
    text = "[rank3]: RuntimeError: NCCL error\n[rank3]: Last error:\n[rank3]: NET/IB : Got completion from peer a<1>\n"
    assert incident(text).explanation.name == "NCCL: an InfiniBand or RoCE connection failed"


# Patterns take linear time -------------------------------------------------------------------------------------------

UNBOUNDED = re.compile(r"(?<!\\)[*+]|\{\d*,\}|\)(?:\{|\?[*+?])|\.\{")


@pytest.mark.parametrize("known", KNOWN_FAILURES, ids=lambda known: known.name)
def test_a_pattern_has_only_bounded_repeats_of_single_characters(known: KnownFailure) -> None:
    assert UNBOUNDED.search(known.pattern) is None


@pytest.mark.parametrize("known", KNOWN_FAILURES, ids=lambda known: known.name)
def test_an_alternative_begins_with_literal_text_which_is_looked_for_first(known: KnownFailure) -> None:
    alternatives = alternatives_of(known.pattern)
    assert "|".join(alternative for _, alternative in alternatives) == known.pattern
    for prefix, alternative in alternatives:
        assert prefix
        re.compile(alternative)
        assert alternative.replace("\\", "").startswith(prefix)


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        " ",
        "1/",
        "nvrm: xid (",
        "nvrm: xid (pci:0000:3b:00): ",
        "dataloader worker (pid(s) 1, ",
        "an error occurred (throttl",
        "couldn't reach x",
        "cancelled at 2021-06-18t13:05:36 due to ",
        "timed out waiting 1",
        "the size of tensor a (1",
        "the detected cuda version (1.",
        "net/ib : got completion",
    ],
)
def test_two_hundred_kilobytes_of_near_matches_is_searched_at_once(unit: str) -> None:
    """A detail has at most 4 KiB. Here, a search of quadratic time would take minutes."""
    text = unit * (200_000 // len(unit))
    for known in KNOWN_FAILURES:
        assert re.search(known.pattern, text) is None, known.name


# The class, where no text tells it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "failure_class"),
    [
        ({"kind": IncidentKind.START_FAILED, "message": "no such program"}, FailureClass.UNKNOWN),
        ({"exit_code": 1}, FailureClass.UNKNOWN),
        ({"exit_code": 3}, FailureClass.UNKNOWN),
        ({"exit_code": 2, "detail": "usage: train.py [-h]\ntrain.py: error: x"}, FailureClass.SCRIPT),
        ({"exit_code": 2, "detail": "no usage"}, FailureClass.UNKNOWN),
        ({"exit_code": -9}, FailureClass.INFRASTRUCTURE),
        ({"exit_code": 137}, FailureClass.INFRASTRUCTURE),
        ({"exit_code": -7}, FailureClass.INFRASTRUCTURE),
        ({"exit_code": -11}, FailureClass.FRAMEWORK),
        ({"exit_code": -6}, FailureClass.FRAMEWORK),
        ({"exit_code": -15}, FailureClass.PREEMPTION),
        ({"exit_code": 143}, FailureClass.PREEMPTION),
        ({"exit_code": 0}, FailureClass.PREEMPTION),
        ({"exit_code": -2}, FailureClass.UNKNOWN),
        ({"exit_code": 255}, FailureClass.UNKNOWN),
        (
            {"exit_code": 1, "message": "torch.OutOfMemoryError: x", "exception": "torch.OutOfMemoryError"},
            FailureClass.FRAMEWORK,
        ),
        (
            {"exit_code": 1, "message": "jsonargparse.ArgumentError: x", "exception": "jsonargparse.ArgumentError"},
            FailureClass.SCRIPT,
        ),
        (
            {"exit_code": 1, "message": "ConnectionRefusedError: x", "exception": "ConnectionRefusedError"},
            FailureClass.INFRASTRUCTURE,
        ),
        ({"exit_code": 1, "message": "MemoryError", "exception": "MemoryError"}, FailureClass.FRAMEWORK),
        ({"exit_code": -11, "message": "TypeError: x", "exception": "TypeError"}, FailureClass.FRAMEWORK),
        ({"exit_code": -9, "message": "TypeError: x", "exception": "TypeError"}, FailureClass.INFRASTRUCTURE),
        ({"exit_code": -6, "message": "TypeError: x", "exception": "TypeError"}, FailureClass.SCRIPT),
    ],
)
def test_a_failure_without_a_known_text_has_the_class_of_its_exception_or_signal(
    facts: dict[str, Any], failure_class: FailureClass
) -> None:
    assert bare_incident(**facts).failure_class is failure_class


def test_a_launch_does_not_import_the_table() -> None:
    """Only a job that failed needs it."""
    imported = "elastic_core.agent.start, elastic_core.agent.report, elastic_policies.plugin"
    code = f"import sys, {imported}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "elastic_core.incidents" in modules
    assert "elastic_policies.known_failures" not in modules


@pytest.mark.parametrize(
    ("facts", "host"),
    [
        ({"message": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}, True),
        ({"message": "RuntimeError: No CUDA GPUs are available"}, True),
        ({"exit_code": -9, "detail": "memory.events: oom_kill 1"}, True),
        ({"exit_code": -9}, True),
        (
            {"exit_code": None, "kind": IncidentKind.START_FAILED, "message": "no pid is left"},
            True,
        ),
        ({"message": "socket.gaierror: [Errno -3] Temporary failure in name resolution"}, False),
        ({"message": "ClientError: An error occurred (SlowDown) when calling the GetObject operation"}, False),
        ({"message": "HTTPError: 429 Client Error: Too Many Requests for url"}, False),
        ({"message": "OSError: [Errno 122] Disk quota exceeded"}, False),
        ({"message": "OSError: [Errno 98] Address already in use"}, False),
        ({"message": "RuntimeError: Connection closed by peer"}, False),
        ({"message": "TimeoutError: the store"}, False),
        ({"message": "ValueError: boom"}, False),
        ({"exit_code": -15}, False),
    ],
)
def test_which_failures_can_be_a_hosts_fault(facts: dict[str, Any], host: bool) -> None:
    assert bare_incident(**{"exit_code": 1, **facts}).explanation.hosts_fault is host


def test_a_rank_that_exited_early_is_not_explained_by_the_failure_that_it_quotes() -> None:
    failed = bare_incident(
        kind=IncidentKind.EXITED_EARLY, message="it had finished when rank 0 met ENOSPC: No space left on device"
    )
    assert failed.explanation == Explanation()
