#!/bin/sh
# Creates a CA and a certificate for the agents in this script's folder: ca.crt, tls.crt, tls.key. The
# CA's key is discarded, so new certificates need a new CA: run the script again, then kubectl apply.
set -eu
cd "$(dirname "$0")"
umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
days=${DAYS:-825}

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days "$days" \
  -subj /CN=pycrictl-agent-ca -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
  -subj /CN=pycrictl-agent -keyout "$work/tls.key" -out "$work/tls.csr" 2>/dev/null
printf '%s\n' 'subjectAltName=DNS:pycrictl-agent.pycrictl.svc,DNS:pycrictl-agent' \
  'extendedKeyUsage=serverAuth' 'basicConstraints=CA:FALSE' >"$work/tls.ext"
openssl x509 -req -in "$work/tls.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial \
  -days "$days" -extfile "$work/tls.ext" -out "$work/tls.crt" 2>/dev/null
mv "$work/ca.crt" "$work/tls.crt" "$work/tls.key" .
