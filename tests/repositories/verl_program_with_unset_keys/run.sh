# Neither a default of verl's is judged (GB406: a step of 256 prompts), nor an estimator by step.
python3 nb/train.py data.train_batch_size=64 actor_rollout_ref.rollout.n=4 algorithm.step_adv_estimator=grpo actor_rollout_ref.actor.use_dynamic_bsz=True
