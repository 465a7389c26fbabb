#!/usr/bin/env python3
"""Makes programs really fail, and writes their logs for tests/attempts/corpus/produced.txt.

    PYTHONPATH=. python scripts/produce_failures.py [--only NAME] > tests/attempts/corpus/produced.txt

As root on Linux with torch, jax and gcc: full and read-only tmpfs, a small /dev/shm and a memory cgroup (v1) are made
and removed. The label of each case and the expression of its deciding line were written with the case, not taken from
what the classifier said.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PYTHON = sys.executable
LONGEST = 120
"""Lines of a log that are kept, from its end."""
HEAD = """import os, sys, time
def steps(number=4, first=100):
    for step in range(first, first + number):
        print(f"step {step} | loss {3.2 - step / 1000:.4f} | lr 3.0e-04 | 212 ms", flush=True)
"""
GLOO = HEAD + """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ.get("WAIT_S", "20"))))
rank = dist.get_rank()
one = torch.ones(4)
dist.all_reduce(one)
if rank == 0: steps()
"""
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


@dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        name: unique.
        label: a FailureClass.
        key: expression of the line that decides; empty: only the exit code does.
        code: of train.py.
        how: python, torchrun or bash.
        where: "", full, read_only, shm or memory: the directory it runs in, or its limit.
    """

    name: str
    label: str
    key: str
    code: str
    how: str = "python"
    where: str = ""


def python(name: str, label: str, key: str, code: str, where: str = "") -> Case:
    return Case(name, label, key, HEAD + code, where=where)


def ranks(name: str, label: str, key: str, code: str) -> Case:
    return Case(name, label, key, GLOO + code, "torchrun")


def bash(name: str, label: str, key: str, code: str, where: str = "") -> Case:
    return Case(name, label, key, code, "bash", where)


CASES = (
    # ---- memory
    bash("cgroup-kill-confirmed", "host_oom", "", "echo step 100 loss 3.1; {python} -c 'b = bytearray(10**9); b[::4096] = b[::4096]'; exit $?", "memory"),
    bash("cgroup-kill-in-torchrun", "host_oom", "", "echo step 100 loss 3.1; {torchrun} oom.py; exit $?", "memory"),
    python("memoryerror", "host_oom", "^MemoryError", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\nsteps()\nx = bytearray(2**31)"),
    python("numpy-memory", "host_oom", "ArrayMemoryError", "import numpy\nsteps()\nnumpy.ones((10**7, 10**7))"),
    python("torch-cpu-allocator", "host_oom", "DefaultCPUAllocator", "import torch\nsteps()\ntorch.ones(10**14)"),
    python("fork-enomem", "host_oom", "Cannot allocate memory", "import errno\nsteps()\nraise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))"),
    python("mmap-enomem", "host_oom", "Cannot allocate memory", "import mmap\nsteps()\nmmap.mmap(-1, 2**46)"),
    bash("std-bad-alloc", "host_oom", "std::bad_alloc", "echo step 9 loss 2.2; printf '#include <vector>\\nint main(){std::vector<char> v(1L<<60);}' > a.cc; g++ a.cc -o a && ./a"),
    # ---- disks
    python("torch-save-full", "disk_full", "PytorchStreamWriter|inline_container|No space left", "import torch\nsteps()\ntorch.save(torch.ones(10**6), 'ckpt.pt')", "full"),
    python("torch-save-legacy-full", "disk_full", "No space left", "import torch\nsteps()\ntorch.save(torch.ones(10**6), 'ckpt.pt', _use_new_zipfile_serialization=False)", "full"),
    python("write-full", "disk_full", "No space left", "steps()\nwith open('log.jsonl', 'wb', 0) as f:\n    while True: f.write(b'x' * 65536)", "full"),
    python("numpy-save-full", "disk_full", "requested and|No space left", "import numpy\nsteps()\nnumpy.save('shard.npy', numpy.ones(10**6))", "full"),
    python("safetensors-full", "disk_full", "No space left", "import torch\nfrom safetensors.torch import save_file\nsteps()\nsave_file({'w': torch.ones(10**6)}, 'model.safetensors')", "full"),
    python("copy-full", "disk_full", "No space left", "import shutil\nsteps()\nopen('/tmp/resil-big','wb').write(b'x'*4000000)\nshutil.copy('/tmp/resil-big', 'copy')", "full"),
    python("mkdir-full-inodes", "disk_full", "No space left", "steps()\nfor i in range(10**6): os.mkdir(f'd{i}')", "full"),
    bash("dd-full", "disk_full", "No space left", "set -e\necho iteration 100 loss 2.1\ndd if=/dev/zero of=big bs=1M count=9", "full"),
    bash("tar-full", "disk_full", "Wrote only", "set -e\ntar cf all.tar /usr/bin/python3* /usr/lib/x86_64-linux-gnu/libc.so.6 2>&1", "full"),
    python("dcp-save-full", "disk_full", "No space left|inline_container|StreamWriter", "import torch, torch.distributed.checkpoint as dcp\nsteps()\ndcp.save({'w': torch.ones(10**6)}, checkpoint_id='step-100')", "full"),
    python("sqlite-full", "disk_full", "disk is full", "import sqlite3\nsteps()\nc = sqlite3.connect('runs.db')\nc.execute('create table t (x)')\nfor i in range(9999): c.execute('insert into t values (?)', ('x'*4000,)); c.commit()", "full"),
    python("read-only-open", "read_only", "Read-only file system", "steps()\nopen('metrics.json', 'w')", "read_only"),
    python("read-only-torch-save", "read_only", "Read-only|cannot be opened", "import torch\nsteps()\ntorch.save({}, 'ckpt.pt')", "read_only"),
    python("read-only-mkdir", "read_only", "Read-only file system", "steps()\nos.makedirs('ckpt/step-100')", "read_only"),
    bash("read-only-touch", "read_only", "Read-only file system", "set -e\ntouch stamp", "read_only"),
    python("eio-proc-mem", "io_error", "Input/output error", "steps()\nopen('/proc/self/mem', 'rb', 0).read(1)"),
    python("estale", "stale_handle", "Stale file handle", "import errno\nsteps()\nraise OSError(errno.ESTALE, os.strerror(errno.ESTALE), '/nfs/data/pile-00.bin')"),
    python("edquot", "quota", "Disk quota exceeded", "import errno\nsteps()\nraise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), '/home/ada/ckpt/step-100.pt')"),
    python("eremoteio", "io_error", "Remote I/O error", "import errno\nsteps()\nraise OSError(errno.EREMOTEIO, os.strerror(errno.EREMOTEIO), '/lustre/x')"),
    python("eshutdown", "io_error", "transport endpoint shutdown", "import errno\nsteps()\nraise OSError(errno.ESHUTDOWN, os.strerror(errno.ESHUTDOWN), '/lustre/x')"),
    python("shm-bus-error-loader", "shared_memory", "bus error|Bus error|No space left", "import torch\nfrom torch.utils.data import DataLoader, Dataset\nclass D(Dataset):\n    def __len__(self): return 99\n    def __getitem__(self, i): return torch.ones(10**6)\nif __name__ == '__main__':\n    steps()\n    for x in DataLoader(D(), batch_size=4, num_workers=2): pass", "shm"),
    python("shm-share-memory", "shared_memory", "unable to (?:write|resize|allocate)|No space left", "import torch\nsteps()\ntorch.ones(10**7).share_memory_()", "shm"),
    python("shm-multiprocessing", "shared_memory", "", "from multiprocessing import shared_memory\nsteps()\nm = shared_memory.SharedMemory(create=True, size=10**7)\nm.buf[:] = b'x' * 10**7", "shm"),
    python("shm-memmap", "shared_memory", "No space left", "steps()\nwith open('/dev/shm/batch.bin', 'wb') as f: f.write(b'x' * 10**7)", "shm"),
    # ---- missing
    python("no-module", "missing_module", "ModuleNotFoundError", "import apex.optimizers"),
    python("no-submodule", "missing_module", "ModuleNotFoundError", "import torch.nn.transformerx"),
    python("no-name", "missing_module", "cannot import name", "from torch.distributed import FullyShardedXYZ"),
    bash("python-m-missing", "missing_module", "No module named", "{python} -m megatron.training.pretrain"),
    bash("script-missing", "missing_file", "can't open file", "{python} pretrain_gpt.py --tp 8"),
    bash("command-missing", "missing_file", "command not found", "set -e\nmodule_xyz load cuda"),
    bash("no-interpreter", "missing_file", "required file not found|bad interpreter", "printf '#!/opt/conda/envs/x/bin/python\\n' > run; chmod +x run; ./run"),
    bash("venv-missing", "missing_file", "No such file", "set -e\nsource /scratch/envs/train/bin/activate\npython train.py"),
    python("data-missing", "missing_file", "FileNotFoundError", "steps(0)\nopen('/data/pile/train.idx', 'rb')"),
    python("torch-load-missing", "missing_file", "FileNotFoundError", "import torch\ntorch.load('/ckpt/last.pt')"),
    python("numpy-memmap-missing", "missing_file", "FileNotFoundError", "import numpy\nnumpy.memmap('/data/train.bin', dtype='u2')"),
    python("listdir-missing", "missing_file", "FileNotFoundError", "os.listdir('/data/imagenet/train')"),
    python("chained-missing", "missing_file", "FileNotFoundError", "try:\n    open('/data/vocab.json')\nexcept OSError as e:\n    raise RuntimeError('tokenizer could not be loaded') from e"),
    python("no-library", "missing_library", "cannot open shared object", "import ctypes\nctypes.CDLL('libnccl.so.2')"),
    bash("loader-missing-library", "missing_library", "error while loading shared libraries", "printf 'int f(){return 1;}' > f.c; gcc -shared -o libf.so f.c; printf 'int f(); int main(){return f();}' > m.c; gcc m.c -L. -lf -o m; rm libf.so; ./m"),
    bash("undefined-symbol", "missing_library", "undefined symbol", "printf 'void g(); void f(){g();}' > f.c; gcc -shared -fPIC -o ext.so f.c; {python} -c 'import ctypes; ctypes.CDLL(\"./ext.so\", 2)'"),
    bash("not-permitted", "missing_file", "Permission denied", "mkdir secret; echo 1 > secret/data; chmod 700 secret; chmod 755 .; setpriv --reuid=65534 --clear-groups {python} -c 'open(\"secret/data\")'"),
    # ---- checkpoints
    python("torch-load-truncated", "checkpoint", "central directory|PytorchStreamReader", "import torch\ntorch.save(torch.ones(10**5), 'a.pt')\nos.truncate('a.pt', 200000)\ntorch.load('a.pt')"),
    python("torch-load-empty", "checkpoint", "EOFError|Ran out of input", "import torch\nopen('a.pt', 'w').close()\ntorch.load('a.pt')"),
    python("torch-load-garbage", "checkpoint", "UnpicklingError|invalid load key|Weights only", "import torch\nopen('a.pt', 'wb').write(b'\\x0b' * 999)\ntorch.load('a.pt', weights_only=False)"),
    python("torch-load-legacy-cut", "checkpoint", "unexpected EOF|Ran out of input|EOFError|truncated", "import torch\ntorch.save(torch.ones(10**5), 'a.pt', _use_new_zipfile_serialization=False)\nos.truncate('a.pt', 200000)\ntorch.load('a.pt')"),
    python("state-dict-size", "checkpoint", "loading state_dict", "import torch\nm = torch.nn.Linear(4, 4)\ntorch.nn.Linear(8, 4).load_state_dict(m.state_dict())"),
    python("state-dict-missing-key", "checkpoint", "loading state_dict", "import torch\nm = torch.nn.Linear(4, 4)\ntorch.nn.Sequential(m, m).load_state_dict(m.state_dict())"),
    python("safetensors-cut", "checkpoint", "SafetensorError", "import torch\nfrom safetensors.torch import save_file, load_file\nsave_file({'w': torch.ones(999)}, 'm.safetensors')\nos.truncate('m.safetensors', 500)\nload_file('m.safetensors')"),
    python("safetensors-garbage", "checkpoint", "SafetensorError", "from safetensors.torch import load_file\nopen('m.safetensors', 'wb').write(b'<!DOCTYPE html>' * 99)\nload_file('m.safetensors')"),
    python("pickle-cut", "checkpoint", "pickle data was truncated|Ran out of input|EOFError|UnpicklingError", "import pickle\nopen('o.pkl', 'wb').write(pickle.dumps(list(range(9999)))[:5000])\npickle.load(open('o.pkl', 'rb'))"),
    python("dcp-no-metadata", "checkpoint", "metadata", "import torch, torch.distributed.checkpoint as dcp\nos.mkdir('step-100')\ndcp.load({'w': torch.ones(4)}, checkpoint_id='step-100')"),
    python("dcp-missing-shard", "checkpoint", "No such file|CheckpointException", "import torch, glob, torch.distributed.checkpoint as dcp\ndcp.save({'w': torch.ones(4)}, checkpoint_id='s')\n[os.unlink(p) for p in glob.glob('s/*.distcp')]\ndcp.load({'w': torch.ones(4)}, checkpoint_id='s')"),
    python("dcp-missing-key", "checkpoint", "Missing key", "import torch, torch.distributed.checkpoint as dcp\ndcp.save({'w': torch.ones(4)}, checkpoint_id='s')\ndcp.load({'v': torch.ones(4)}, checkpoint_id='s')"),
    python("npz-cut", "checkpoint", "BadZipFile|not a zip|Bad CRC|Bad magic", "import numpy\nnumpy.savez('c.npz', a=numpy.ones(9999))\nos.truncate('c.npz', 5000)\nnumpy.load('c.npz')['a']"),
    python("optimizer-group-size", "checkpoint", "parameter group", "import torch\na = torch.optim.Adam(torch.nn.Linear(4, 4).parameters())\ntorch.optim.Adam(torch.nn.Linear(4, 4, bias=False).parameters()).load_state_dict(a.state_dict())"),
    # ---- start
    python("port-in-use-tcpstore", "port_in_use", "EADDRINUSE|address already in use", "import socket, torch.distributed as d\ns = socket.create_server(('localhost', 0))\nd.TCPStore('localhost', s.getsockname()[1], 2, True)"),
    python("port-in-use-bind", "port_in_use", "Address already in use", "import socket\ns = socket.create_server(('localhost', 0))\nsocket.create_server(('localhost', s.getsockname()[1]))"),
    bash("port-in-use-torchrun", "port_in_use", "EADDRINUSE|already in use", "{python} -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 29511)); time.sleep(25)' & sleep 1; {python} -m torch.distributed.run --nproc_per_node=1 --master_addr=127.0.0.1 --master_port=29511 ok.py; c=$?; kill %1; exit $c"),
    bash("port-in-use-jax", "port_in_use", "already in use|Failed to add port|address", "{python} -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 29512)); time.sleep(20)' & sleep 1; {python} -c 'import jax; jax.distributed.initialize(\"127.0.0.1:29512\", 1, 0)'; c=$?; kill %1; exit $c"),
    python("store-unreachable", "rendezvous", "client socket|timed out", "import datetime, torch.distributed as d\nd.TCPStore('127.0.0.1', 9, 2, False, datetime.timedelta(seconds=2))"),
    python("store-clients-missing", "rendezvous", "clients joined|waiting for clients", "import datetime, torch.distributed as d\nd.TCPStore('127.0.0.1', 0, 2, True, datetime.timedelta(seconds=2))"),
    bash("elastic-join-timeout", "rendezvous", "RendezvousTimeoutError", "{python} -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:0 --rdzv_conf=join_timeout=4 ok.py"),
    bash("elastic-unreachable", "rendezvous", "RendezvousConnectionError|client socket|DistNetworkError", "{python} -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=192.0.2.7:29500 --rdzv_conf=timeout=3 ok.py"),
    bash("jax-coordinator-missing", "rendezvous", "DEADLINE_EXCEEDED|UNAVAILABLE|deadline", "timeout 50 {python} -c 'import jax; jax.distributed.initialize(\"127.0.0.1:9\", 2, 1, initialization_timeout=4)'"),
    bash("host-unknown", "rendezvous", "Name or service not known|could not be resolved|gai", "{python} -c 'import datetime, torch.distributed as d; d.TCPStore(\"gpu-node-17.cluster.invalid\", 29500, 2, False, datetime.timedelta(seconds=3))'"),
    bash("argparse-unknown", "launcher", "unrecognized arguments", "{python} -c 'import argparse; p = argparse.ArgumentParser(prog=\"train.py\"); p.add_argument(\"--lr\"); p.parse_args([\"--lrr\", \"3\"])'"),
    bash("argparse-required", "launcher", "arguments are required", "{python} -c 'import argparse; p = argparse.ArgumentParser(prog=\"train.py\"); p.add_argument(\"--data\", required=True); p.parse_args([])'"),
    bash("torchrun-bad-option", "launcher", "unrecognized arguments|unknown", "{python} -m torch.distributed.run --nproc_per_nodes=2 train.py"),
    bash("torchrun-bad-value", "launcher", "Unsupported nproc_per_node", "{python} -m torch.distributed.run --nproc_per_node=gpus train.py"),
    bash("syntax-error", "launcher", "SyntaxError", "printf 'def f(:\\n  pass\\n' > t.py; {python} t.py"),
    bash("indentation-error", "launcher", "IndentationError", "printf 'def f():\\nreturn 1\\n' > t.py; {python} t.py"),
    bash("bash-syntax", "launcher", "syntax error", "printf 'if true; then\\n echo 1\\n' > t.sh; bash t.sh"),
    bash("exec-format", "launcher", "Exec format error|cannot execute", "cp /bin/true prog; printf '\\xb7' | dd of=prog bs=1 seek=18 conv=notrunc status=none; ./prog"),
    bash("not-executable", "launcher", "Permission denied", "echo 'echo 1' > train.sh; ./train.sh"),
    bash("accelerate-no-config", "launcher", "unrecognized arguments|error:", "{python} -m accelerate.commands.launch --num_proces 2 train.py"),
    # ---- crashes
    python("segfault-null", "segfault", "", "import ctypes\nsteps()\nctypes.string_at(0)"),
    python("segfault-faulthandler", "segfault", "Fatal Python error: Segmentation", "import ctypes, faulthandler\nfaulthandler.enable()\nsteps()\nctypes.string_at(0)"),
    bash("segfault-bash", "segfault", "Segmentation fault", "{python} -c 'print(\"step 1 loss 2\", flush=True); import ctypes; ctypes.string_at(0)'; exit $?"),
    python("abort-faulthandler", "segfault", "Fatal Python error: Aborted", "import faulthandler\nfaulthandler.enable()\nsteps()\nos.abort()"),
    bash("double-free", "segfault", "double free|free\\(\\)", "printf '#include <stdlib.h>\\n#include <stdio.h>\\nint main(){puts(\"step 7 loss 1.5\");char*volatile p=malloc(64);free(p);free(p);}' > d.c; gcc -w -O0 d.c -o d; ./d; exit $?"),
    bash("stack-smash", "segfault", "stack smashing", "printf '#include <string.h>\\nint main(int c,char**v){char b[8];memset(b,c,64);return b[3];}' > d.c; gcc -w -O0 -fstack-protector-all d.c -o d; ./d; exit $?"),
    bash("sigfpe", "segfault", "Floating point exception", "printf 'int main(int c,char**v){return 5/(c-1);}' > d.c; gcc -w -O0 d.c -o d; ./d; exit $?"),
    bash("glibc-assert", "segfault", "Assertion", "printf '#include <assert.h>\\nint main(int c,char**v){assert(c>3 && \"block size\");}' > d.c; gcc -w d.c -o d; ./d; exit $?"),
    bash("killed-by-hand", "killed", "", "{python} -c 'import os; print(\"step 8 loss 2.0\", flush=True); os.kill(os.getpid(), 9)'; exit $?"),
    bash("terminated", "killed", "", "{python} -c 'import os; print(\"step 8 loss 2.0\", flush=True); os.kill(os.getpid(), 15)'; exit $?"),
    python("exit-3-silent", "unknown", "", "steps()\nsys.exit(3)"),
    # ---- numbers
    python("anomaly-nan", "nan_loss", "returned nan", "import torch\nsteps()\nwith torch.autograd.detect_anomaly():\n    x = torch.zeros(3, requires_grad=True)\n    (x.sqrt() * 0).sum().backward()"),
    python("assert-finite", "nan_loss", "nan", "import math\nsteps()\nloss = float('nan')\nassert math.isfinite(loss), f'loss is {loss} at step 104'"),
    python("loss-nan-then-exit", "nan_loss", "loss nan", "steps()\nfor s in range(104, 112): print(f'step {s} | loss nan | lr 3.0e-04 | 212 ms')\nsys.exit(1)"),
    python("raise-not-finite", "nan_loss", "not finite", "steps()\nraise ValueError('gradient norm is not finite: inf')"),
    python("clip-grad-nonfinite", "nan_loss", "non-finite", "import torch\nsteps()\nx = torch.ones(2, requires_grad=True)\nx.grad = torch.tensor([float('nan'), 1])\ntorch.nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)"),
    python("nan-to-int", "nan_loss", "NaN", "steps()\nprint(int(float('nan')))"),
    # ---- exceptions
    python("keyerror", "exception", "^KeyError", "steps()\n{'en': 1}['de']"),
    python("matmul-shapes", "exception", "mat1 and mat2", "import torch\nsteps()\ntorch.nn.Linear(8, 4)(torch.ones(2, 9))"),
    python("no-cuda-build", "exception", "not compiled with CUDA", "import torch\ntorch.ones(2).cuda()"),
    python("index", "exception", "^IndexError", "import torch\nsteps()\ntorch.nn.Embedding(10, 4)(torch.tensor([11]))"),
    python("attribute", "exception", "^AttributeError", "steps()\nNone.shape"),
    python("type", "exception", "^TypeError", "steps()\nlen(3)"),
    python("own-class", "exception", "DataError", "steps()\nclass DataError(Exception): pass\nraise DataError('document 17 has no text')"),
    python("assertion", "exception", "AssertionError", "steps()\nassert 512 % 7 == 0, 'global batch size (512) is not divisible by 7'"),
    python("chained", "exception", "ValueError|KeyError", "steps()\ntry:\n    {}['x']\nexcept KeyError as e:\n    raise ValueError('no column x') from e"),
    python("loader-worker", "exception", "ZeroDivisionError", "import torch\nfrom torch.utils.data import DataLoader, Dataset\nclass D(Dataset):\n    def __len__(self): return 9\n    def __getitem__(self, i): return 1 // (i - 5)\nif __name__ == '__main__':\n    steps()\n    for x in DataLoader(D(), num_workers=2): pass"),
    python("recursion", "exception", "RecursionError", "steps()\ndef f(): return f()\nf()"),
    python("unicode", "exception", "UnicodeDecodeError", "steps()\nb'\\xff\\xfe'.decode()"),
    python("json", "exception", "JSONDecodeError", "import json\njson.loads('{\"a\": ')"),
    python("jax-shape", "exception", "TypeError", "import jax.numpy as n\nsteps()\nn.dot(n.ones((2, 3)), n.ones((2, 3)))"),
    python("group", "exception", "ValueError: shard 3", "steps()\nraise ExceptionGroup('two shards', [ValueError('shard 3 is empty'), OSError('shard 4')])"),
    python("lightning-misconfigured", "exception", "MisconfigurationException|ValueError", "import lightning as L\nL.Trainer(accelerator='gpu', devices=8, logger=False)"),
    python("dtype", "exception", "dtype|scalar type", "import torch\nsteps()\ntorch.nn.Linear(4, 4)(torch.ones(2, 4, dtype=torch.float64))"),
    python("backward-twice", "exception", "backward through the graph", "import torch\nsteps()\nx = torch.ones(2, requires_grad=True)\ny = (x * x).sum()\ny.backward()\ny.backward()"),
    # ---- several ranks
    ranks("rank1-raises", "exception", "KeyError: 'de'", "if rank == 1: {'en': 1}['de']\ndist.all_reduce(one)"),
    ranks("rank1-killed", "killed", "exitcode +: -9", "if rank == 1: os.kill(os.getpid(), 9)\ndist.all_reduce(one)"),
    ranks("rank1-segfault", "segfault", "exitcode +: -11|SIGSEGV", "import ctypes\nif rank == 1: ctypes.string_at(0)\ndist.all_reduce(one)"),
    ranks("rank1-exits-3", "unknown", "exitcode +: 3", "if rank == 1: os._exit(3)\ndist.all_reduce(one)"),
    ranks("rank1-missing-file", "missing_file", "FileNotFoundError", "if rank == 1: open('/data/shard-17.bin')\ndist.all_reduce(one)"),
    ranks("rank0-nan", "nan_loss", "loss is nan", "if rank == 0: raise FloatingPointError('loss is nan at step 104')\ndist.all_reduce(one)"),
    ranks("rank1-memoryerror", "host_oom", "DefaultCPUAllocator", "if rank == 1: torch.ones(10**14)\ndist.all_reduce(one)"),
    ranks("rank1-late", "collective_timeout", "Timed out|timeout|Timeout", "dist.barrier()\nif rank == 1: time.sleep(40)\ndist.all_reduce(one)"),
    ranks("monitored-barrier", "collective_timeout", "monitoredBarrier|Timed out|timeout", "if rank == 1: time.sleep(40)\ndist.monitored_barrier()"),
    ranks("wrong-shape-collective", "exception", "RuntimeError|shape|size", "if rank == 1: raise RuntimeError('The size of tensor a (4) must match the size of tensor b (5) at non-singleton dimension 0')\ndist.all_reduce(one)"),
    ranks("both-import", "missing_module", "ModuleNotFoundError", "import transformer_engine"),
)  # fmt: skip


def run(case: Case) -> tuple[str, int, bool]:
    """Return the log, the exit code, and whether the kernel killed for memory."""
    directory = Path(tempfile.mkdtemp(prefix="resil-fail-"))
    place, cgroup, before = directory / "work", None, []
    place.mkdir()
    try:
        (place / "train.py").write_text(case.code.replace("{python}", PYTHON))
        (place / "ok.py").write_text("print('step 1')\n")
        (place / "oom.py").write_text("import os\nif os.environ['RANK'] == '1': b = bytearray(10**9); b[::4096] = b[::4096]\nimport time; time.sleep(9)\n")
        if case.where in ("full", "read_only"):
            disk = directory / "disk"
            disk.mkdir()
            options = "size=256k,nr_inodes=64" if case.where == "full" else "ro"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
        elif case.where == "shm":
            before = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh"]
        elif case.where == "memory":
            cgroup = Path("/sys/fs/cgroup/memory") / directory.name
            cgroup.mkdir()
            limit = 700 if "{torchrun}" in case.code else 100
            (cgroup / "memory.limit_in_bytes").write_text(f"{limit}M")
            before = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
        where = directory / "disk" if case.where in ("full", "read_only") else place
        if case.how == "bash":
            torchrun = " ".join(TORCHRUN)
            (place / "job.sh").write_text(case.code.replace("{python}", PYTHON).replace("{torchrun}", torchrun))
            command = ["bash", str(place / "job.sh")]
        elif case.how == "torchrun":
            command = [*TORCHRUN, str(place / "train.py")]
        else:
            command = [PYTHON, str(place / "train.py")]
        environment = {
            "PATH": os.environ["PATH"], "HOME": "/root", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "WAIT_S": "5" if case.label == "collective_timeout" else "20", "JAX_PLATFORMS": "cpu",
        }  # fmt: skip
        done = subprocess.run(
            [*before, *command], cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip
        oom = cgroup is not None and "oom_kill 0" not in (cgroup / "memory.oom_control").read_text()
        text = done.stdout.decode("utf-8", "backslashreplace")
        text = text.replace(str(place), "/home/ada/run").replace(str(directory), "/home/ada")
        text = re.sub(r"[^\s\"']*/\.venv|/opt/\S*?venv\S*?(?=/lib/python|/bin/)", "/opt/venv", text)
        return text, done.returncode if done.returncode >= 0 else 128 - done.returncode, oom
    finally:
        subprocess.run(["umount", "-q", "-l", directory / "disk"], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(directory, ignore_errors=True)
        if cgroup is not None:
            cgroup.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAMES", help="separated by commas")
    wanted = parser.parse_args()
    print("# Logs of programs that really failed.\n")
    for case in CASES:
        if wanted.only and case.name not in wanted.only.split(","):
            continue
        try:
            text, code, oom = run(case)
        except subprocess.TimeoutExpired:
            print(f"{case.name}: too slow", file=sys.stderr)
            continue
        lines = text.splitlines()[-LONGEST:]
        matching = [at for at, line in enumerate(lines) if case.key and re.search(case.key, line)]
        at = next((at for at in matching if not lines[at].startswith(("  ", "[rank1]:   ", "[rank0]:   "))), matching[0] if matching else None)
        if case.key and at is None or code == 0:
            print(f"{case.name}: exit code {code}, no line with {case.key!r}:\n{text[-900:]}", file=sys.stderr)
            continue
        if at is not None:
            lines[at] = f"» {lines[at]}"
        options = f"exit={code}" + (" oom_kill=yes" if oom else "")
        print(f"%%%% {case.label} {case.name} {options} | produced by scripts/produce_failures.py")
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
