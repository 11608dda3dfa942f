M=~/models/Q
D=${DATA:-~/data/gsm8k}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true data.train_files=$D/train.parquet actor_rollout_ref.model.path=$M
