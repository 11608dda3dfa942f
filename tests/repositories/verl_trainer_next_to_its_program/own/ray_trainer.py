class RayPPOTrainer:
    def _validate_config(self):
        n_gpus = self.config.trainer.n_gpus_per_node
        assert self.config.data.train_batch_size % n_gpus == 0
