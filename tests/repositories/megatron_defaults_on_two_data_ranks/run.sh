# With model parallelism data ranks are fewer, and 2 prompts per rollout fit.
NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --train_iters 10 --tensor_model_parallel_size 4
