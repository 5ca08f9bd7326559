import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Loads partition 0 of a topic with Kafka's Java client. Arguments: produce, consume or latency, bootstrap.servers, the topic,
 * messages, their bytes. Waits for a line on its input before it begins, and prints seconds, or nanoseconds of each message.
 * Message n begins with n in eight bytes, big-endian, and goes on with the lowest byte of n.
 */
public final class KafkaLoad {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long PATIENCE_NS = 120_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        int size = Integer.parseInt(arguments[4]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("acks", "all");
        if (arguments[0].equals("latency")) {
            settings.put("linger.ms", "0");
        }
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer = consumer(arguments[1])) {
            producer.partitionsFor(topic);
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            System.out.println("ready");
            if (System.in.read() < 0) {
                return;
            }
            long begin = System.nanoTime();
            switch (arguments[0]) {
                case "produce" -> produce(producer, topic, count, size);
                case "consume" -> consume(consumer, count, size);
                default -> {
                    latency(producer, consumer, topic, count, size);
                    return;
                }
            }
            System.out.println((System.nanoTime() - begin) / 1e9);
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String servers) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] message(long number, int size) {
        byte[] value = new byte[size];
        Arrays.fill(value, (byte) number);
        ByteBuffer.wrap(value).putLong(number);
        return value;
    }

    private static void produce(KafkaProducer<byte[], byte[]> producer, String topic, int count, int size) throws Exception {
        AtomicReference<Exception> failure = new AtomicReference<>();
        for (long number = 0; number < count; number++) {
            producer.send(new ProducerRecord<>(topic, 0, null, message(number, size)), (stored, error) -> {
                if (error != null) {
                    failure.compareAndSet(null, error);
                }
            });
        }
        producer.flush();
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private static void consume(KafkaConsumer<byte[], byte[]> consumer, int count, int size) {
        long next = 0;
        long deadline = System.nanoTime() + PATIENCE_NS;
        while (next < count) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                check(record.value(), next++, size);
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(next + " of " + count + " messages");
            }
        }
    }

    private static void check(byte[] value, long number, int size) {
        if (!Arrays.equals(value, message(number, size))) {
            throw new IllegalStateException("message " + number + " is another one");
        }
    }

    private static void latency(KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer, String topic, int count, int size) throws Exception {
        consumer.seekToEnd(List.of(new TopicPartition(topic, 0)));
        consumer.position(new TopicPartition(topic, 0));
        long[] times = new long[count];
        for (int number = 0; number < count; number++) {
            long begin = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, 0, null, message(number, size))).get();
            boolean found = false;
            while (!found) {
                if (System.nanoTime() - begin > PATIENCE_NS) {
                    throw new IllegalStateException("message " + number + " does not come back");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    check(record.value(), number, size);
                    found = true;
                }
            }
            times[number] = System.nanoTime() - begin;
        }
        long[] measured = Arrays.copyOfRange(times, count / 4, count);
        Arrays.sort(measured);
        System.out.println(measured[measured.length / 2] + " " + measured[measured.length * 99 / 100]);
    }
}
