"""moonpool.master"""
