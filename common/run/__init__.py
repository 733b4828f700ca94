"""How a run is kept. What a training script uses of it:

arguments    its dataclass extends RunArgs and states bounds beside its fields: `num_envs: Positive[int] = 2048`
run          main(train, Args) parses and calls; begin(args) resumes; Run is the folder, the loop, the end
devices      puts the functions of one device on all of them; compares what a run will hold with their memory
checkpoints  load(...) takes over the learned state of another run
tracking, plots, folder   used by Run: progress and wandb, the table and the picture, the folder and its lock
"""
