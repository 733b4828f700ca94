"""How a run is kept. A training script uses these modules:

arguments    the script's Args extends RunArgs and declares bounds in its types: `num_envs: Positive[int] = 2048`
command      main(train, Args) parses and calls; what the user can fix is one line
run          begin(args, script) resumes; Run is the folder, the loop, the end
devices      puts the functions of one device on all of them
memory       compares what a run will hold with the memory of the devices
checkpoints  load_learner(...) takes over the learned state of another run
tracking, plots, folder   used by Run: output and wandb, the table and the picture, the folder and its lock
"""
