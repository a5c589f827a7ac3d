"""What spark-submit starts: a boxwright command inside a Spark session that has spark-submit's settings.

For example `spark-submit deploy/spark_main.py predict MODEL DATA --engine spark --out FOLDER`.
"""

import sys

from pyspark.sql import SparkSession

from boxwright.cli import main

if __name__ == "__main__":
    with SparkSession.builder.appName("boxwright").getOrCreate():
        code = main()
    sys.exit(code)
