# A defaults list of Hydra to configurations of the fork may set what a launch leaves out.
python3 local_grpo.py --config-path conf --config-name algo/npu data.train_batch_size=8 actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo
