# There is no src/open_r1, so no fork's own program has the key.
torchrun --nproc_per_node=8 src/open_r1/grpo.py --num_generations 8 --max_pixels 2359296
