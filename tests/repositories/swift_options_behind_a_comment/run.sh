# Bash ends the command there.
swift rlhf --rlhf_type grpo --dataset a --reward_funcs format \
# sizes
--num_generations 4
