"""Names of the files and folders of a sweep: the layout on disk, which is a contract.

Join a name to the folder that holds it: ``trial / paths.RESULT``.
"""

# In a sweep's folder.
SWEEP = "sweep.yaml"  # space, search, base overrides, provenance; a folder with this file is a sweep
PREPARED = "prepared.json"  # what preparation counted, by model and task
PREPARE = "prepare.json"  # what preparation is to do
PREPARE_FOLDER = "prepare"  # configurations and log of preparation
PREPARE_ERROR = "prepare.error"  # why preparation failed
PREPARE_PROGRESS = "prepare.progress"  # what preparation does now
INVALID = "invalid.jsonl"  # invalid points with their problems and fixes
JOURNAL = "study.journal"  # a copy of the Optuna study, for optuna-dashboard
LEASE = "lease.json"  # which controller works on the sweep
PROGRESS = "outlook.json"  # progress that only the controller knows
SUMMARY = "summary.jsonl"  # what was read of each ended trial; counts only while its files are the same
MEMORY = "memory.jsonl"  # measured GPU memory
COMMANDS = "commands.jsonl"  # each command that ran the sweep, with its working directory
WARM_START = "warm_start.json"  # points and results taken from an earlier sweep
EFFECTS = "effects.json"  # effect of each parameter in a one-factor sweep
CONTROLLER_LOG = "controller.log"  # the controller's decisions; rotated files end in .1, .2, ...
CONTROLLER_OUTPUT = "controller.out"  # what a controller that runs as a job prints
SLURM_OUTPUT = "slurm.out"  # what Slurm itself says of a job; in a trial's logs/ and in prepare/ as well
INPUTS = "inputs.json"  # hashes of the user's files that trainings depend on
INPUTS_FOLDER = "inputs"  # copies of them, one folder for each state
SHARED_SERVER = "servers/shared"  # the vLLM server that all trials share, with files as a trial has
TRIALS = "trials"  # one folder for each trial
FORK = "forked"  # in a continuation's sweep: the checkpoint that its trials start from, with what was logged until then
FORK_RECORD = "fork.json"  # in that folder: parent, step, seed and hash

# In the folder of a shared server.
SERVER_ADDRESS = "address.json"  # where it answers; absent while it does not

# In a trial's folder.
CONFIG = "config.yaml"  # written last: a folder that has it is complete
TRIAL = "trial.json"  # point and attributes, as the study holds them
PLAN = "plan.json"  # derived numbers: batch sizes, steps, completions
OVERRIDES = "overrides.yaml"  # the overrides of the point
PROVENANCE = "provenance.json"  # code version, packages, machine
COMMAND = "command.sh"  # repeats the trial as a single run
METRICS = "metrics.jsonl"  # one logged step or evaluation per line
COMPLETIONS = "completions.jsonl"  # a few held-out completions of each evaluation
PROMPT_REWARDS = "prompt_rewards.jsonl"  # the mean reward of each held-out prompt at each evaluation
HEARTBEAT = "heartbeat"  # step, and a counter that moves while rank 0 lives
CONTROL = "control.json"  # the controller's request: run, pause, prune or stop, with the reason
RESULT = "result.json"  # status, objective, failure; `pruned` is the status of a trial stopped early
ATTEMPTS = "attempts.jsonl"  # intent, start with job id, and end of each attempt
RUNS = "runs.jsonl"  # start, end and devices of each run
OOM_FIX = "healed.json"  # smaller micro-batches for further attempts
CALLBACK = "callback.json"  # what the Callback inside another program reports
STOP = "stop.json"  # passes a stop request to that Callback
TRAINED_WITH = "trained_with.json"  # what the trainer of the user's own command got: every field, world size, rewards
CHANGED = "changed.json"  # keys that a point set in another program's recipe
LOGS = "logs"  # output of each rank
CHECKPOINTS = "checkpoints"  # checkpoints to resume from
ADAPTERS = "adapter_versions"  # versions of the adapter for the shared vLLM server
MODEL = "model"  # the trained model, where trainer.keep keeps it
