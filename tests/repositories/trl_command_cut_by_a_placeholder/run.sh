# Bash takes a name behind > for the name of a file.
python train_grpo.py --beta 0.1 \
  --run_name <name> \
  --num_generations 4
