"""Names of the files and folders of a sweep: the layout on disk, which is a contract.

Join a name to the folder that holds it: ``trial / paths.RESULT``.
"""

# In a sweep's folder.
# space, search, base overrides, provenance; a folder with this file is a sweep
SWEEP = "sweep.yaml"
# what preparation counted, by model and task
PREPARED = "prepared.json"
# what preparation is to do
PREPARE = "prepare.json"
# configurations and log of preparation
PREPARE_FOLDER = "prepare"
# why preparation failed
PREPARE_ERROR = "prepare.error"
# what preparation does now
PREPARE_PROGRESS = "prepare.progress"
# invalid points with their problems and fixes
INVALID = "invalid.jsonl"
# a copy of the Optuna study, for optuna-dashboard
JOURNAL = "study.journal"
# which controller works on the sweep
LEASE = "lease.json"
# progress that only the controller knows
PROGRESS = "outlook.json"
# what was read of each ended trial; counts only while its files are the same
SUMMARY = "summary.jsonl"
# measured GPU memory
MEMORY = "memory.jsonl"
# each command that ran the sweep, with its working directory
COMMANDS = "commands.jsonl"
# points and results taken from an earlier sweep
WARM_START = "warm_start.json"
# effect of each parameter in a one-factor sweep
EFFECTS = "effects.json"
# the controller's decisions; rotated files end in .1, .2, ...
CONTROLLER_LOG = "controller.log"
# what a controller that runs as a job prints
CONTROLLER_OUTPUT = "controller.out"
# what Slurm itself says of a job; in a trial's logs/ and in prepare/ as well
SLURM_OUTPUT = "slurm.out"
# hashes of the user's files that trainings depend on
INPUTS = "inputs.json"
# copies of them, one folder for each state
INPUTS_FOLDER = "inputs"
# the vLLM server that all trials share, with files as a trial has
SHARED_SERVER = "servers/shared"
# one folder for each trial
TRIALS = "trials"
# in a continuation's sweep: the checkpoint that its trials start from, with what was logged until
# then
FORK = "forked"
# in that folder: parent, step, seed and hash
FORK_RECORD = "fork.json"

# In the folder of a shared server.
# where it answers; absent while it does not
SERVER_ADDRESS = "address.json"

# In a trial's folder.
# written last: a folder that has it is complete
CONFIG = "config.yaml"
# point and attributes, as the study holds them
TRIAL = "trial.json"
# derived numbers: batch sizes, steps, completions
PLAN = "plan.json"
# the recipe of a program that is not our own trainer, with the parameters of the point
RECIPE = "recipe.yaml"
# the overrides of the point
OVERRIDES = "overrides.yaml"
# code version, packages, machine
PROVENANCE = "provenance.json"
# repeats the trial as a single run
COMMAND = "command.sh"
# one logged step or evaluation per line
METRICS = "metrics.jsonl"
# a few held-out completions of each evaluation
COMPLETIONS = "completions.jsonl"
# the mean reward of each held-out prompt at each evaluation
PROMPT_REWARDS = "prompt_rewards.jsonl"
# step, and a counter that moves while rank 0 lives
HEARTBEAT = "heartbeat"
# the controller's request: run, pause, prune or stop, with the reason
CONTROL = "control.json"
# status, objective, failure; `pruned` is the status of a trial stopped early
RESULT = "result.json"
# intent, start with job id, and end of each attempt
ATTEMPTS = "attempts.jsonl"
# start, end and devices of each run
RUNS = "runs.jsonl"
# smaller micro-batches for further attempts
OOM_FIX = "healed.json"
# what the Callback inside another program reports
CALLBACK = "callback.json"
# passes a stop request to that Callback
STOP = "stop.json"
# the words that a framework's own process got, and the attempt
ENTERED = "entered.json"
# a Python of the user's command has loaded our hook
HOOKED = "hooked"
# what the user's command has written outside of the sweep, one path a line
WRITTEN = "written.txt"
# what the trainer of the user's own command got: every field, world size, rewards
TRAINED_WITH = "trained_with.json"
# keys that a point set in another program's recipe
CHANGED = "changed.json"
# the checkpoint that a program's attempt resumes from; it may clear its output folder
RESUMED = "resumed"
# which checkpoint an attempt on several nodes resumes from
RESUME_CHOICE = "resume.json"
# output of each rank
LOGS = "logs"
# checkpoints to resume from
CHECKPOINTS = "checkpoints"
# versions of the adapter for the shared vLLM server
ADAPTERS = "adapter_versions"
# the trained model, where trainer.keep keeps it
MODEL = "model"
