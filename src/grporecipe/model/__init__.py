"""The types of the domain, which every other package of grporecipe speaks of.

Recipe (`recipe.Recipe`)
    A file or a launch command that trains with GRPO: its framework, its keys and values as written,
    with their lines.
Framework (`framework.Framework`)
    A trainer with its own keys: TRL, verl and others. Its table has a `Field` for each field of a
    setting.
Release (`releases`)
    A version of a framework, with the keys that it takes (`KeyTable`) and their types and defaults
    (`recipe.KeySpec`).
Setting (`setting.Setting`)
    The numbers that decide a training, in the same words for every framework. Reading turns a
    recipe into a setting.
Row (`setting.Row`)
    What is known of a field of the setting apart from its value; `setting.ROWS` is the one table of
    fields.
Completion, prompt, group
    A prompt is sampled ``num_generations`` times; these completions are a group, and advantages are
    relative to it.
Rollout
    The completions that are sampled at once, with weights that stay the same.
Micro-step, optimizer step
    One forward and backward pass of a process; one change of the weights, after
    ``gradient_accumulation_steps`` of them.
Plan (`planning`)
    What follows from a setting by arithmetic: completions per rollout and step, steps, evaluations,
    checkpoints.
Rule, violation, problem (`grporecipe.rules.registry`)
    A condition with a permanent code; what it found in one setting or recipe; the same with its
    severity and texts.
Architecture (`architecture`)
    A model's shape, from which its parameters and its memory follow.
"""
