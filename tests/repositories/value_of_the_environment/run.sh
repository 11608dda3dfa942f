python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 4 --pretrain M --prompt_data d \
  --train_batch_size 512 --rollout_batch_size 128 --n_samples_per_prompt ${N_ROLLOUT} --advantage_estimator group_norm
