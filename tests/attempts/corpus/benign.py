"""Lines of healthy trainings, with those that look like failures. Deterministic.

A template belongs to the development or to the test half by the hash of its text. `{n}` is a number, `{f}` a fraction,
`{rank}` a rank, `{t}` a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.attempts.corpus import is_test
from tests.attempts.corpus.surroundings import STEPS

LOOK_ALIKES = """\
error: 0
0 errors, 0 warnings
errors: 0, retries: {n}
number of nan iterations:   0 | number of skipped iterations:   {n}
nan_to_num applied to {n} values
x = torch.nan_to_num(x, nan=0.0, posinf=1e4)
nan_policy: skip
check_for_nan_in_loss_and_grad ...................... True
detect_anomaly: false, terminate_on_nan: false
[deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: 65536, reducing to 32768
loss scale overflow, skipping step {n}
Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {n}.0
[WARNING] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: {n}, reducing to {n}
GradScaler: found inf, scale {n} -> {n}
grad norm: inf (skipped by GradScaler), step {n}
NaN or Inf found in input tensor.
iteration {n}: grad_norm nan in warmup of fp16, ignored: step skipped
val_loss improved from inf to {f}, saving model to best.pt
best_val_loss: inf
Metric val_loss improved. New best score: {f} (was inf)
lr: 1e-4, min_loss: inf, patience: {n}
"nan_count": 0, "inf_count": 0
Killed workers: 0
killed: 0, restarted: 0, alive: {n}
OOM kills: 0
oom_kill 0
memory.events: low 0 high {n} max 0 oom 0 oom_kill 0
out_of_memory_policy: abort
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is set to avoid out of memory errors
If you run out of memory, reduce --micro-batch-size
max_split_size_mb is set to avoid CUDA out of memory
| OOM: 0 | retries: 0 | free: {f} GiB
num_ooms: 0, num_alloc_retries: 0
CUDA out of memory while searching the batch size, retrying with batch size {n}
| WARNING: ran out of memory in forward pass, skipping batch
Memory usage: {f} GiB of 80 GiB, 0 OOM events
RESOURCE_EXHAUSTED is retried by the autotuner; trying the next configuration
Autotuner: configuration {n} ran out of memory, skipping
NCCL WARN NET/IB : Unable to open device mlx5_{rank}, retry with TCP
node07:4711:4800 [{rank}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB ib0:10.1.2.3<0>
node07:4711:4800 [{rank}] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
node07:4711:4800 [{rank}] NCCL INFO NCCL_IB_RETRY_CNT set by environment to 13.
node07:4711:4800 [{rank}] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
node07:4711:4800 [{rank}] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation
node07:4711:4800 [{rank}] NCCL INFO cudaDriverVersion 12040
node07:4711:4800 [{rank}] NCCL INFO Channel {n}/16 : 0[0] -> 1[1] via P2P/CUMEM
node07:4711:4800 [{rank}] NCCL INFO Connected all rings
node07:4711:4800 [{rank}] NCCL INFO comm 0x5f{n} rank {rank} nranks 8 cudaDev {rank} - Init COMPLETE
[rank{rank}]:[W1120 {t} ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())
[rank{rank}]:[W1120 {t} ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank {rank}]  using GPU {rank} to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.
[W1120 {t} ProcessGroupNCCL.hpp:119] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING instead
[W1120 {t} socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [localhost]:{n} (errno: 97 - Address family not supported by protocol).
[W1120 {t} socket.cpp:697] [c10d] The client socket has failed to connect to [node01]:29500 (errno: 111 - Connection refused), retrying
[I1120 {t} TCPStore.cpp:312] [c10d - debug] The server has started on port = 29500.
rendezvous: node07 joined, {n} of {n} ready
torch.distributed.elastic.rendezvous.static_tcp_rendezvous: Creating TCPStore as the c10d::Store implementation
[I1120 {t} api.py:188] max_restarts     : 0
nccl_timeout_s: 600, heartbeat_timeout_s: 480
distributed_timeout_minutes ......................... 10
timeout: 1800, retries: 3
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600
TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000
nvidia-smi: Xid errors: None
Xid: [] (no Xid in the last {n} h)
"Xid": {{"79": "fallen off the bus", "48": "double bit ECC"}}
xid_policy: {{79: drain, 48: drain, 31: ignore}}
health check: no Xid, 0 uncorrectable ECC errors, NVLink OK
    Volatile Uncorr. ECC                      : 0
    SRAM Uncorrectable                        : 0
    DRAM Uncorrectable                        : 0
ecc.errors.uncorrected.volatile.total: 0
double bit ECC errors: 0
gpu {rank}: uncorrectable 0, correctable {n}, temperature {n} C
dcgmi: PCIe replay counter {n}, NVLink error counters 0
dcgm health: Overall Health: Healthy
wandb: Network error (ConnectionError), entering retry loop.
wandb: ERROR Error while calling W&B API: 502 Bad Gateway; retrying
wandb: WARNING Fatal error while uploading data is disabled by WANDB_MODE=offline
wandb: 429 encountered (Filestream rate limit exceeded), retrying in {f} seconds
wandb: Waiting for wandb.init()...
'(ReadTimeoutError("HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)"), '(Request ID: {n})')' thrown while requesting HEAD https://huggingface.co/x/resolve/main/config.json
Retrying in 1s [Retry 1/5].
mlflow: connection reset by peer, retrying ({n}/7)
urllib3.connectionpool: Retrying (Retry(total={n}, connect=None)) after connection broken by 'ConnectionResetError(104, 'Connection reset by peer')'
botocore.retryhandler: retry needed, retryable exception caught: Connection was closed before we received a valid response
[Errno 11] Resource temporarily unavailable, trying again
tensorboard: port 6006 was already in use, trying another port
TensorBoard: Address already in use; using port {n} instead
prometheus exporter: Address already in use, trying next port {n}
jupyter: The port 8888 is already in use, trying another port.
FileNotFoundError: no checkpoint yet, starting from scratch
No checkpoint found in /ckpt: starting from scratch
WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt
    will not load any checkpoints and will start from random
cache miss: /cache/{n}.npy: No such file or directory, building index
building the index: /data/x.idx not found, will be created
ls: cannot access '/ckpt/step-*': No such file or directory
rm: cannot remove '/tmp/lock.{n}': No such file or directory
cat: /ckpt/latest: No such file or directory
slurm_script: line 14: module: command not found (ignored)
Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory
TF-TRT Warning: Could not find TensorRT
ModuleNotFoundError: flash_attn is not installed, falling back to sdpa
No module named 'apex'; using torch.nn.LayerNorm instead
ImportError: xformers is optional; attention falls back to torch
Some weights of BertForSequenceClassification were not initialized from the model checkpoint and are newly initialized: ['classifier.bias']
Missing keys: [], unexpected keys: []
<All keys matched successfully>
size mismatch tolerated for pos_embed: interpolating {n} -> {n}
checkpoint {n} is complete: 0 missing keys
Checkpoint verified: no corruption found
corrupted samples skipped: {n}
PIL: Corrupt EXIF data.  Expecting to read 4 bytes but only got 0.
libpng warning: iCCP: known incorrect sRGB profile
Corrupt JPEG data: {n} extraneous bytes before marker 0xd9
[mp3 @ 0x55] Header missing
faulthandler enabled: a segmentation fault prints the stacks of all threads
SIGSEGV handler installed
Signal handlers: SIGTERM -> save and exit, SIGUSR1 -> checkpoint
SLURM auto-requeueing enabled. Setting signal handlers.
slurmstepd: info: setting memory limit to {n} MB
srun: job {n} queued and waiting for resources
srun: job {n} has been allocated resources
srun: lua: Submitted job {n}
srun: warning: can't run 1 processes on 2 nodes, setting nnodes to 1
sbatch: Submitted batch job {n}
slurmstepd: error: couldn't chdir to `/home/ada/old': No such file or directory: going to /tmp instead
walltime left: {n} min; time limit 20:00:00
time limit of this job: {n} s, stop {n} s before
job will be preempted by higher QOS only after {n} h
requeue: enabled, restart count 0
exclude: node failure list is empty
node_failures: 0, preemptions: 0, cancelled: 0
disk: {n} GiB free, no space problem
fs check: No space left on device: never in {n} checks
quota: {n} GB of 1000 GB used, limit not exceeded
/dev/shm: {n} GiB free
mount: /data is read-only by design
dataset is mounted read-only: /data (ro)
nfs: server nas3 OK
nfs: server nas3 not responding, still trying
nfs: server nas3 not responding, still trying (OK after 3 s)
segment {n} of the dataset, fault tolerance on
abort_on_error=False, raise_on_nan=False
assert_finite: off
except_hook installed
"exceptions": [], "tracebacks": 0
test_exception_handling ... ok
class OutOfMemoryError is handled by the batch size finder
Exception handling: retry up to {n} times
KeyboardInterrupt handler registered
exit code of last attempt: 0
previous attempt ended with exit code {n}; continuing at step {n}
resuming after 'CUDA out of memory' in attempt {n}
[resil] attempt {n} ended: gpu oom; this is attempt {n}
UserWarning: The given NumPy array is not writable
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.
/opt/venv/lib/python3.11/site-packages/torch/optim/lr_scheduler.py:227: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.
E0000 00:00:{n} 4711 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered
E0000 00:00:{n} 4711 cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered
2026-11-20 03:14:15 WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I1120 {t} 4711 xla_bridge.py:889] Unable to initialize backend 'rocm': module 'jaxlib' has no attribute 'plugin'
INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory
WARNING:jax: An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.
torch._dynamo hit config.recompile_limit ({n})
[rank{rank}]:W1120 {t} torch/_inductor/utils.py:1250] [0/0] Not enough SMs to use max_autotune_gemm mode
DEADLINE_EXCEEDED is retried with back-off: attempt {n}
UNAVAILABLE: retrying connection to coordinator, attempt {n}
[Gloo] Rank {rank} is connected to 7 peer ranks. Expected number of connected peer ranks is : 7
loss: {f} (nan: 0, inf: 0)
perplexity: inf is clipped to {n}
grad_scale: {n}, found_inf: 0
skipping document {n}: too long
skipped {n} corrupt records
WARNING: Ignoring invalid distribution -orch
warning: Disk usage of /scratch {n}%
error_rate: {f}
word error rate {f}, character error rate {f}
val/error={f}
mean squared error: {f}
top-1 error {f}, top-5 error {f}
failure_probability: 0.0
fail_fast: true
kill_timeout: {n}
retries left: {n}
stale: false
stale_handles: 0
broken_links: 0, io_errors: 0
I/O errors since boot: 0
checkpoint saved in {f} s, fsync OK
terminated workers: 0
terminate called: false
aborted: 0
Aborted episodes: {n}
collective timeouts: 0
watchdog: heartbeat of rank {rank} at step {n}
ProcessGroupNCCL initialization options: TIMEOUT(ms): 600000, USE_HIGH_PRIORITY_STREAM: 0
heartbeat timeout is {n} s
""".splitlines()


def benign_lines(number: int = 20_000, *, half: bool | None = None) -> Iterator[str]:
    """Return lines of healthy trainings, one in two a look-alike, the same each time; `half`: only templates of the
    test (True) or the development half (False)."""
    chance = random.Random(7)
    templates = [one for one in LOOK_ALIKES if half is None or is_test(one) == half]
    steps = list(STEPS.values())
    for at in range(number):
        if at % 2:
            yield templates[at // 2 % len(templates)].format(
                n=chance.randrange(1, 10**6), f=f"{chance.random() * 9:.3f}", rank=chance.randrange(64),
                t=f"03:{chance.randrange(60):02}:15.926",
            )  # fmt: skip
        else:
            yield chance.choice(steps)(chance.randrange(1, 10**6), chance.random() * 9)
