NPROC_PER_NODE=1 swift rlhf --rlhf_type grpo --model m --dataset d --num_generations 4 --per_device_train_batch_size 4 --gradient_accumulation_steps 32 \
  --beta 0 --reward_funcs accuracy format --reward_weights 1 1 2 --use_gym_env true --gym_env e --multi_turn_scheduler s
