# A check of the code of EasyR1, whose options are not EasyR1's.
python3 easyr1/check.py --files a --import_package verl
