# Of Open-R1's grpo.py all keys are known. Of a file that is not there nothing is.
torchrun --nproc_per_node=8 src/open_r1/grpo.py --num_generations 8 --max_pixels 2359296
