# ms-swift's dataset is in a variable, so it is not missing.
swift rlhf --rlhf_type grpo --model m --dataset ${DATA} --reward_funcs accuracy
