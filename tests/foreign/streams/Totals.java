import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * Adds the numbers of the topic "numbers" by their remainder, exactly once, and writes each sum to the topic "totals".
 *
 * <p>The numbers pass a repartition topic, and the sums are in memory alone: an instance restores them from their
 * changelog. There is no cache, so that each number makes one record of a sum. It runs until it is killed.
 *
 * <p>Arguments: the brokers, a folder, into how many sums the numbers go.
 */
public final class Totals {
  public static void main(String[] arguments) {
    long sums = Long.parseLong(arguments[2]);
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "totals");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
    settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 10_000);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);

    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream("numbers")
        .groupBy((key, value) -> Long.toString(Long.parseLong(value) % sums))
        .reduce(
            (left, right) -> Long.toString(Long.parseLong(left) + Long.parseLong(right)),
            Materialized.as(Stores.inMemoryKeyValueStore("sums")))
        .toStream()
        .to("totals");

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
    streams.setStateListener((state, before) -> System.out.println(state));
    streams.start();
  }
}
