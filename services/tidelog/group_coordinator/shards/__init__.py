"""What runs the cores of groups and transactions: claims, loading, appending, holding, markers, lag."""
