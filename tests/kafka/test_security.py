"""TLS, SASL and IPv6, with librdkafka, kafka-python and lies."""

from __future__ import annotations

import socket
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from pyreplog.errors import InvalidArgumentError
from pyreplog.kafka import SaslUsers
from pyreplog.kafka.sasl import MECHANISMS
from pyreplog.kafka.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient
from tests.net.test_tls import Certificates, certificates
from tests.waiting import PATIENCE_S

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka import KafkaProducer

__all__ = ["certificates"]  # a fixture

USERS = {"billing": "a long secret", "a,b=c": "ünïcode"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_with_the_right_password_are_admitted(tmp_path: Path, mechanism: str) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", users=SaslUsers(USERS, MECHANISMS))
        brokers.create()
        for user, password in USERS.items():
            producer = Producer({
                "bootstrap.servers": brokers.addresses, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password,
            })  # fmt: skip
            producer.produce("events", b"x", partition=0)
            assert producer.flush(PATIENCE_S) == 0
        python = KafkaProducer(
            bootstrap_servers=brokers.addresses, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
            sasl_plain_username="billing", sasl_plain_password=USERS["billing"],
        )  # fmt: skip
        assert python.send("events", b"y", partition=0).get(PATIENCE_S).offset == 2
        python.close(PATIENCE_S)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("billing", "guessed"), ("nobody", "a long secret")])
def test_clients_with_a_wrong_password_are_refused(tmp_path: Path, mechanism: str, user: str, password: str) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", users=SaslUsers(USERS, MECHANISMS))
        client = AdminClient({
            "bootstrap.servers": brokers.addresses, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
            "sasl.username": user, "sasl.password": password,
        })  # fmt: skip
        with pytest.raises(KafkaException):
            client.list_topics(timeout=2)


def error_code(client: RawClient, key: ApiKey, version: int, request: object) -> int:
    """The error code that a request is answered with."""
    return int(client.ask(key, version, request).error_code)


def test_requests_before_the_authentication_end_the_connection(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, request_ms=2_000) as brokers:
        brokers.start("1", users=SaslUsers(USERS))
        server = brokers.servers["1"]
        with RawClient(server) as client:
            client.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
            client.send(ApiKey.METADATA, 9, MetadataRequest())
            assert client.is_closed()
        with RawClient(server) as client:  # one mechanism that the listener does not have, and then one that it has
            assert (
                error_code(client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
                == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            )
            assert (
                error_code(client, ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"x"))
                == ErrorCode.ILLEGAL_SASL_STATE
            )
            assert error_code(client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-256")) == 0
            assert (
                error_code(client, ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"n,,nonsense"))
                == ErrorCode.SASL_AUTHENTICATION_FAILED
            )
            assert (
                error_code(client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-256"))
                == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            )
            assert client.is_closed()  # in time


def test_a_scram_proof_of_another_exchange_is_refused(tmp_path: Path) -> None:
    """What was heard once does not serve again: the server's nonce is another one."""
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", users=SaslUsers(USERS))
        with RawClient(brokers.servers["1"]) as client:
            client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-512"))
            first = client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"n,,n=billing,r=abc"))
            assert bytes(first.auth_bytes).startswith(b"r=abc")
            final = SaslAuthenticateRequest(b"c=biws,r=abc" + b"x" * 24 + b",p=" + b"A" * 86 + b"==")
            assert error_code(client, ApiKey.SASL_AUTHENTICATE, 2, final) == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("mechanisms", [(), ("OAUTHBEARER",)])
def test_unknown_sasl_mechanisms_are_refused(mechanisms: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="mechanisms"):
        SaslUsers(USERS, mechanisms)


def test_sasl_handshake_without_users_gets_illegal_sasl_state(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1")
        with RawClient(brokers.servers["1"]) as client:
            assert (
                error_code(client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
                == ErrorCode.ILLEGAL_SASL_STATE
            )
            assert (
                error_code(client, ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"x"))
                == ErrorCode.ILLEGAL_SASL_STATE
            )


def test_clients_produce_and_consume_through_tls(tmp_path: Path, certificates: Certificates) -> None:
    with KafkaBrokers(tmp_path, request_ms=2_000) as brokers:
        brokers.start("1", tls=certificates.server(), users=SaslUsers(USERS, ("PLAIN",)))
        brokers.create()
        producer = Producer({
            "bootstrap.servers": brokers.addresses, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
            "sasl.username": "billing", "sasl.password": USERS["billing"],
            "enable.ssl.certificate.verification": False,
        })  # fmt: skip
        for _ in range(300):
            producer.produce("events", b"x" * 10_000, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        with socket.create_connection(brokers.servers["1"].address) as silent:  # no handshake: not for long
            silent.settimeout(PATIENCE_S)
            assert not silent.recv(1)
        with socket.create_connection(brokers.servers["1"].address) as plain:
            plain.settimeout(PATIENCE_S)
            plain.sendall(b"\0\0\0\x0a" + b"no TLS here")
            with suppress(ConnectionError):
                while plain.recv(100):
                    pass


def test_ipv6_and_an_advertised_address(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        try:
            brokers.start("1", host="::1")
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        assert brokers.addresses.startswith("[::1]:")
        producer = Producer({"bootstrap.servers": brokers.addresses})
        brokers.create()
        producer.produce("events", b"x", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        brokers.start("2", advertised="kafka.example.org:9092")
        with RawClient(brokers.servers["1"]) as client:
            told = {each.node_id: (each.host, each.port) for each in client.ask(3, 9, MetadataRequest()).brokers}
        assert told == {1: brokers.servers["1"].address, 2: ("kafka.example.org", 9092)}
        with pytest.raises(InvalidArgumentError, match="address"):
            brokers.start("3", advertised="nowhere")
