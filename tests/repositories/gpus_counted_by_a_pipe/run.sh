export CUDA_VISIBLE_DEVICES=0,1,2,3
NUM_GPUS=$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\n' | wc -l)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=4 data.train_batch_size=64 \
  actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size=4 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=$NUM_GPUS \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 algorithm.use_kl_in_reward=False actor_rollout_ref.actor.use_kl_loss=True
