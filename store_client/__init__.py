"""moonpool.store_client"""
