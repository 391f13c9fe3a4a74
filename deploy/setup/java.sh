#!/bin/sh
# Make sure that there is a Java Spark runs on: java.sh PYTHON, a Python that can import the gateway.
#
# The gateway's own search decides what fits. Where nothing does, root on
# Debian or Ubuntu gets a headless one; everybody else is told what to run.
set -eu

python=$1

find_java() {
    "$python" - <<'END'
import sys
from gateway.errors import UnavailableError
from gateway.lake.spark.jars import find_java
try:
    sys.stdout.write(find_java() + "\n")
except UnavailableError as error:
    sys.exit(f"{error}.")
END
}

java=$(find_java) && echo "Using Java at $java" && exit

if ! command -v apt-get >/dev/null; then
    echo "Install a Java 17 or 21 runtime, or point JAVA_HOME at one, and run make again." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Run: sudo apt-get install openjdk-17-jre-headless   (or openjdk-21-jre-headless), then make again." >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
echo "Installing a headless Java with apt-get"
apt-get update -qq
for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
    # A name that only other packages mention has no candidate version to install.
    if apt-cache show "$package" 2>/dev/null | grep -q '^Version:'; then
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null
        java=$(find_java)
        echo "Using Java at $java"
        exit
    fi
done
echo "This system offers neither Java 17 nor 21; install one of them and point JAVA_HOME at it." >&2
exit 1
