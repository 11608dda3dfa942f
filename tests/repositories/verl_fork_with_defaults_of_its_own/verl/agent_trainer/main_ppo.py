import hydra
@hydra.main(config_path='config', config_name='ppo_trainer')
def main(config): pass
