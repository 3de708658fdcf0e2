"""Complete programs, as short as they can be. Each trains a tiny model on the CPU and prints the loss of every step.

pretrain.py    text, packed             sft.py          conversations, packed, on two ranks, with resume
dpo.py         preference pairs         recommend.py    categories as numbers, a KeyedJaggedTensor

parts.py has what your own job has already: data, a tokenizer and a model.
"""
