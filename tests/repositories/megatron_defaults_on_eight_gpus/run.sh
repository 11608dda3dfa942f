# 2 prompts per rollout for 8 data ranks.
NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --train_iters 10
