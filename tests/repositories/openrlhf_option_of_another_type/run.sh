python3 -m openrlhf.cli.train_ppo_ray --pretrain m --prompt_data d --gamma 1,0.99 --advantage_estimator group_norm --n_samples_per_prompt 8 --train_batch_size 128 --rollout_batch_size 128
