torchrun --nproc_per_node=8 train_grpo_x.py --gradient_accumulation_steps 4 --num_generations 24 --output_dir o
