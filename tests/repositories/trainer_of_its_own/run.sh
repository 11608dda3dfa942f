# Its imports are followed by name: none is TRL, and torch trains.
export CUDA_VISIBLE_DEVICES=0,1
python train.py --num_generations 8 --beta 0.1
