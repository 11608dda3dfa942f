"""Names of the files and folders of a sweep: the layout on disk, which is a contract.

Join a name to the folder that holds it: ``trial / paths.RESULT``.
"""

# In a sweep's folder.
SWEEP = "sweep.yaml"  # space, search, base overrides, provenance; a folder with this file is a sweep
PREPARED = "prepared.json"  # what preparation counted, by model and task
PREPARE = "prepare.json"  # what preparation is to do
PREPARE_FOLDER = "prepare"  # its configurations and its log
PREPARE_ERROR = "prepare.error"
PREPARE_PROGRESS = "prepare.progress"
INVALID = "invalid.jsonl"  # invalid points with their problems and fixes
JOURNAL = "study.journal"  # Optuna's
LEASE = "lease.json"
PROGRESS = "outlook.json"  # what only the controller knows
MEMORY = "memory.jsonl"  # measured GPU memory
WARM_START = "warm_start.json"
EFFECTS = "effects.json"
CONTROLLER_LOG = "controller.log"  # its decisions; rotated files end in .1, .2, ...
CONTROLLER_OUTPUT = "controller.out"  # what a controller that runs as a job prints
INPUTS = "inputs.json"  # hashes of the user's files that trainings depend on
INPUTS_FOLDER = "inputs"  # copies of them, one folder for each state
TRIALS = "trials"
PASS_RATES = "pass_rates.json"  # by which task.keep_between chooses prompts; in a screen's folder as well

# In a screen's folder (outputs/screens/<key>-<samples>), which otherwise is like a trial's.
SCREENS = "screens"
SCREEN = "screen.json"  # what is asked; a folder with this file is a screen
SCREENED = "data.json"  # what the prompts and rewards are
ROLLOUTS = "rollouts.jsonl"  # a prompt and its samples a line
KEPT = "kept.jsonl"  # the prompts that the recommended filter keeps

# In a trial's folder.
CONFIG = "config.yaml"  # written last: a folder that has it is complete
TRIAL = "trial.json"  # point and attributes, as the study holds them
PLAN = "plan.json"
OVERRIDES = "overrides.yaml"
PROVENANCE = "provenance.json"
COMMAND = "command.sh"
METRICS = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"  # a few held-out completions of each evaluation
STACKS = "stacks"  # of ranks that hang: a file a rank
HEARTBEAT = "heartbeat"
CONTROL = "control.json"
RESULT = "result.json"
ATTEMPTS = "attempts.jsonl"
RUNS = "runs.jsonl"
OOM_FIX = "healed.json"  # smaller micro-batches for further attempts
CALLBACK = "callback.json"  # what our Callback inside another program reports
STOP = "stop.json"  # passes a stop on to that Callback
CHANGED = "changed.json"  # keys that a point set in another program's recipe
LOGS = "logs"
CHECKPOINTS = "checkpoints"
MODEL = "model"
