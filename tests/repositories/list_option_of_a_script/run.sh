deepspeed --num_gpus 4 train.py --reward_funcs a b --num_generations 4 --model_name_or_path m --output_dir o
