"""moonpool.connector"""
