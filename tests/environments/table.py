"""The environments in which grposweep is started, one a line. Add a line, and both tiers start
there.

`before` is what a run of two steps did in that environment at the commit at which it was first
tried.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FINE = "worked"
NOT_JSON = "JSONDecodeError: a line of another program was read as an answer of the warm server"
PRINTS = 'import os\nprint("hello")\nos.write(1, b"no line end")\n'
BREAKS = 'raise RuntimeError("the file of the user was imported instead of the package")\n'
WARNS = "a ResourceWarning with a traceback at the end"
NO_STREAM = "AttributeError: 'NoneType' object has no attribute 'write'"
OTHERS = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Environment:
    """One environment: what is set, which files are there, how the command is started, and how it
    is expected to end.
    """

    name: str
    before: str = FINE
    # None: not set; {here} is the working directory
    variables: Mapping[str, str | None] = field(default_factory=dict)
    # in the working directory
    files: Mapping[str, str] = field(default_factory=dict)
    # a shell command before the command
    enter: str = ""
    # what the shell has after the command
    streams: str = ""
    code: int = 0
    # a part of what it prints
    says: str = ""
    # whether the default tier prints a sweep's screen there
    shows: bool = False
    # never together with another environment in one run, because it would hide what the other does
    alone: bool = False
    # by the fake trainer, as only the output of the controller is in question
    fake: bool = False
    # Python does not see the files of other environments there
    hides: bool = False

    def fits(self, others: Iterable["Environment"]) -> bool:
        """Return whether one run can be in this environment and in the others."""
        return (
            not self.alone
            and not self.code
            and not any(
                other.alone
                or other.code
                or (self.streams and other.streams)
                or self.variables.keys() & other.variables.keys()
                or self.files.keys() & other.files.keys()
                or (self.hides and other.files)
                or (other.hides and self.files)
                for other in others
            )
        )


def together(environments: Iterable[Environment]) -> list[list[Environment]]:
    """Return groups of environments that one run can be in, each in the smallest group that it
    fits.
    """
    groups: list[list[Environment]] = []
    for one in environments:
        group = min((group for group in groups if one.fits(group)), key=len, default=None)
        groups.append([one]) if group is None else group.append(one)
    return groups


E = Environment
ENVIRONMENTS = [
    # What libraries and the user's files do when they are imported.
    E("wandb offline", NOT_JSON, {"WANDB_MODE": "offline", "PYTHONUNBUFFERED": "1"}),
    E(
        "a site that prints",
        NOT_JSON,
        {"PYTHONPATH": "{here}/site"},
        {"site/sitecustomize.py": PRINTS},
        shows=True,
    ),
    E("own h2.py", NOT_JSON, files={"h2.py": 'print("mine")\n' + BREAKS}),
    E(
        "own tokenizers.py",
        "preparing failed: cannot import name 'Encoding' from 'tokenizers'",
        files={"tokenizers.py": BREAKS},
    ),
    E(
        "own datasets.py",
        "preparing failed: cannot import name 'Dataset' from 'datasets'",
        files={"datasets.py": BREAKS},
    ),
    E(
        "own yaml.py and typer.py",
        "grposweep: ImportError: cannot import name 'Argument' from 'typer'",
        files={"yaml.py": BREAKS, "typer.py": BREAKS},
        shows=True,
    ),
    E(
        "own random.py",
        "preparing failed: cannot import name 'Random' from 'random'",
        files={"random.py": BREAKS},
    ),
    E(
        "an empty entry in PYTHONPATH",
        "AttributeError: module 'yaml' has no attribute 'Dumper'",
        {"PYTHONPATH": ":/nowhere"},
        {"yaml.py": BREAKS, "tokenizers.py": BREAKS},
        shows=True,
    ),
    E(
        "the folder named in PYTHONPATH",
        "AttributeError: module 'yaml' has no attribute 'Dumper'",
        {"PYTHONPATH": "."},
        {"yaml.py": BREAKS, "tokenizers.py": BREAKS},
        shows=True,
    ),
    E(
        "logging configured",
        FINE,
        {"PYTHONPATH": "{here}/start"},
        {"start/sitecustomize.py": "import logging\nlogging.basicConfig(level=logging.DEBUG)\n"},
    ),
    E(
        "transformers at debug",
        "four lines of transformers on the terminal",
        {
            "TRANSFORMERS_VERBOSITY": "debug",
            "DATASETS_VERBOSITY": "debug",
            "ACCELERATE_LOG_LEVEL": "DEBUG",
            "HF_DEBUG": "1",
        },
    ),
    E(
        "torch that logs",
        FINE,
        {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    E("wandb disabled", FINE, {"WANDB_DISABLED": "true"}),
    # The output.
    E(
        "ASCII",
        "UnicodeEncodeError with a traceback after the training",
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        shows=True,
    ),
    E(
        "POSIX without UTF-8",
        "UnicodeEncodeError with a traceback after the training",
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        shows=True,
    ),
    E("Turkish", FINE, {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}),
    E("an unknown language", FINE, {"LANG": "xx_YY.nothing", "LC_CTYPE": "UTF-8"}),
    E("a dumb terminal of 40 columns", FINE, {"TERM": "dumb", "COLUMNS": "40"}, shows=True),
    E("columns without a number", FINE, {"COLUMNS": "wide"}),
    E(
        "colours forced",
        "cursor movements in the file, 60 lines for 19",
        {"NO_COLOR": None, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"},
        shows=True,
    ),
    E(
        "a reader that leaves",
        FINE,
        streams="| { read -r line; echo $line; }",
        alone=True,
        fake=True,
        shows=True,
    ),
    E("input closed", FINE, streams="<&-", shows=True),
    E("output closed", NO_STREAM, streams=">&-", alone=True, fake=True, shows=True),
    E("errors closed", "exit code 120", streams="2>&-", alone=True, fake=True, shows=True),
    E(
        "all streams closed",
        "exit code 120, no result",
        streams="<&- >&- 2>&-",
        alone=True,
        shows=True,
    ),
    E("output on a full disk", FINE, streams=">/dev/full", alone=True),
    # Python.
    E("warnings are errors", WARNS, {"PYTHONWARNINGS": "error"}, shows=True),
    E("all warnings", WARNS, {"PYTHONWARNINGS": "always"}),
    E("development mode", WARNS, {"PYTHONDEVMODE": "1"}),
    E("no docstrings", NOT_JSON, {"PYTHONOPTIMIZE": "2"}, code=2, says="Set PYTHONOPTIMIZE=1"),
    E("safe path", FINE, {"PYTHONSAFEPATH": "1"}, hides=True),
    E("no breakpoints", FINE, {"PYTHONBREAKPOINT": "nowhere.stop"}),
    E("a startup file", FINE, {"PYTHONSTARTUP": "{here}/startup.py"}, {"startup.py": BREAKS}),
    E("a fixed hash seed", FINE, {"PYTHONHASHSEED": "0"}),
    # The machine, the user and the folder.
    E("no HOME", FINE, {"HOME": None}),
    E(
        "a HOME that cannot be written",
        "NotADirectoryError in the log of the preparation",
        {"HOME": "/dev/null", "GRPOSWEEP_CACHE": None, "XDG_CACHE_HOME": None},
        code=2,
        says="Set GRPOSWEEP_CACHE=",
    ),
    E("a hub cache that cannot be written", FINE, {"HF_HOME": "/dev/null/hub"}),
    E("umask 077", FINE, enter="umask 077"),
    E("a hundred open files", FINE, enter="ulimit -n 100"),
    E(
        "proxies",
        FINE,
        {
            "http_proxy": OTHERS,
            "https_proxy": OTHERS,
            "ALL_PROXY": "socks5://127.0.0.1:9",
            "no_proxy": "",
        },
    ),
    E("no folder for temporary files", FINE, {"TMPDIR": "/nowhere/at all"}),
    E("another time zone", FINE, {"TZ": "Pacific/Chatham"}),
    E("no programs", FINE, {"PATH": "/nowhere"}),
    E("no GPU shown", FINE, {"CUDA_VISIBLE_DEVICES": ""}),
    E("odd numbers of threads", FINE, {"OMP_NUM_THREADS": "2,1", "MKL_NUM_THREADS": "all"}),
    E(
        "a conda environment",
        FINE,
        {
            "CONDA_PREFIX": "/nowhere/conda",
            "CONDA_DEFAULT_ENV": "base",
            "LD_LIBRARY_PATH": "/nowhere/conda/lib",
        },
    ),
    E(
        "a shell of a job",
        "failed: this trial was started with 8 processes",
        {
            "SLURM_JOB_ID": "7",
            "SLURM_PROCID": "3",
            "SLURM_NTASKS": "8",
            "RANK": "3",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "3",
            "MASTER_ADDR": "nowhere",
            "MASTER_PORT": "1",
        },
    ),
    E(
        "accelerate launch above",
        "bf16, and nothing printed; DeepSpeed, dynamo and the parallel plugin failed every trial",
        {
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
            "FSDP_VERSION": "1",
        },
    ),
    E(
        "mpirun above",
        "failed: MASTER_ADDR env was not set",
        {
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "PMI_SIZE": "4",
            "PMI_RANK": "1",
            "MV2_COMM_WORLD_SIZE": "4",
            "MV2_COMM_WORLD_RANK": "1",
            "MPI_LOCALNRANKS": "4",
        },
    ),
    E(
        "torchrun above",
        FINE,
        {
            "TORCHELASTIC_RUN_ID": "none",
            "GROUP_RANK": "1",
            "ROLE_RANK": "1",
            "ROLE_WORLD_SIZE": "4",
        },
    ),
    E(
        "TF32 by a variable",
        "TF32, and nothing printed",
        {"NVIDIA_TF32_OVERRIDE": "1"},
        code=2,
        says="set model.tf32",
    ),
    E(
        "oneDNN in bf16",
        "bf16, and nothing printed",
        {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
        code=2,
        says="set model.dtype",
    ),
    E(
        "below an agent of W&B",
        FINE,
        {"WANDB_SWEEP_ID": "abc", "WANDB_RUN_ID": "fixed", "WANDB_RESUME": "must"},
    ),
    E(
        "a hook of git",
        "the commit of the other repository was recorded",
        {"GIT_DIR": "/nowhere/.git", "GIT_WORK_TREE": "/"},
    ),
    E(
        "a git that hangs",
        "nothing was printed, and nothing ended",
        {"PATH": "{here}/tools:" + os.environ["PATH"]},
        {"tools/git": "#!/bin/sh\nsleep 1000\n"},
        "chmod +x tools/git",
        hides=True,
    ),
    E(
        "a service of Kubernetes",
        FINE,
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "tcp://10.0.0.1:443"},
    ),
    E(
        "a job of PBS and of LSF",
        FINE,
        {"PBS_JOBID": "7.head", "PBS_NODEFILE": "/nowhere", "LSB_JOBID": "7", "LSB_HOSTS": "a b"},
    ),
    E("CI", FINE, {"CI": "true", "GITHUB_ACTIONS": "true"}, shows=True),
    E("errors of Hydra in full", FINE, {"HYDRA_FULL_ERROR": "1"}),
    E("a library that cannot be preloaded", FINE, {"LD_PRELOAD": "/nowhere/libnothing.so"}),
    E(
        "relative folders",
        FINE,
        {"TMPDIR": "tmp", "XDG_CACHE_HOME": "cache"},
        {"tmp/empty": "", "cache/empty": ""},
    ),
    E("a terminal of one column", FINE, {"COLUMNS": "1", "LINES": "1"}),
    E(
        "faults and memory traced",
        FINE,
        {"PYTHONFAULTHANDLER": "1", "PYTHONTRACEMALLOC": "1", "PYTHONPROFILEIMPORTTIME": ""},
    ),
    E("memory that is filled", FINE, {"MALLOC_PERTURB_": "85", "PYTHONMALLOC": "malloc"}),
    E(
        "deterministic kernels",
        FINE,
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"},
    ),
    E(
        "the user's own site",
        FINE,
        {"PYTHONUSERBASE": "{here}/user", "PYTHONNOUSERSITE": None},
        {"user/note": ""},
    ),
    E("no core files and a small stack", FINE, enter="ulimit -c 0 -s 1024"),
    E(
        "a low priority on one core",
        FINE,
        enter="renice -n 15 $$ >/dev/null && taskset -cp 0 $$ >/dev/null",
    ),
    E("a session of its own", FINE, enter="trap '' HUP QUIT USR1"),
    E(
        "many warnings of threads",
        FINE,
        {"OMP_NUM_THREADS": "0", "KMP_AFFINITY": "verbose", "TOKENIZERS_PARALLELISM": "true"},
    ),
    E("a number with a decimal comma", FINE, {"LC_NUMERIC": "de_DE.UTF-8", "LANGUAGE": "de"}),
    E(
        "own trl.py and wandb.py",
        FINE,
        files={"trl.py": BREAKS, "wandb.py": BREAKS, "accelerate.py": BREAKS},
    ),
    E(
        "no hub",
        FINE,
        {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
    ),
    E(
        "a terminal of an editor",
        FINE,
        {"TERM_PROGRAM": "vscode", "VSCODE_PID": "1", "PYDEVD_USE_CYTHON": "NO"},
    ),
    E(
        "Colab and Kaggle",
        FINE,
        {"COLAB_GPU": "0", "COLAB_RELEASE_TAG": "x", "KAGGLE_KERNEL_RUN_TYPE": "Interactive"},
    ),
    E(
        "SageMaker",
        FINE,
        {"SM_HOSTS": '["a", "b"]', "SM_FRAMEWORK_PARAMS": "{}", "SM_HP_MP_PARAMETERS": "{}"},
    ),
    E("Databricks", FINE, {"DATABRICKS_RUNTIME_VERSION": "15.4"}),
    E("a job of Ray", FINE, {"RAY_ADDRESS": "auto", "RAY_JOB_ID": "01000000"}),
    E("XLA asked for", FINE, {"PJRT_DEVICE": "CPU", "USE_TORCH_XLA": "1"}),
    E(
        "a folder with blanks and Unicode",
        FINE,
        enter="mkdir 'wörk dir 日本' && cd 'wörk dir 日本'",
        hides=True,
    ),
    E("a folder behind a link", FINE, enter="mkdir real && ln -s real link && cd link", hides=True),
    E(
        "a folder that was deleted",
        "FileNotFoundError with a traceback",
        enter="mkdir gone && cd gone && rmdir ../gone",
        code=2,
        says="it may have been deleted",
        shows=True,
    ),
    E(
        "a file named outputs",
        FINE,
        files={"outputs": ""},
        code=2,
        says="Set outputs=... to a folder that can",
    ),
]
