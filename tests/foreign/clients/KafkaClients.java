import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs Kafka's clients as the lines of its input say: words with tabs between them, the first one names a command. Answers
 * each with lines that begin with "=", then with "."; or with "!" and the error. The argument is bootstrap.servers.
 *
 * Records pass through files. A record that is to be sent: partition (-1: any), time (-1: now), key, value, number of
 * headers, their keys and values. One that was received: partition, offset, time and the rest. Byte strings have a length
 * before them, -1: null. Numbers are big-endian.
 */
public final class KafkaClients {
    private static final long PATIENCE_MS = 60_000;
    private final String servers;
    private final Admin admin;
    private final List<String> answer = new ArrayList<>();

    private KafkaClients(String servers) {
        this.servers = servers;
        this.admin = Admin.create(settings(List.of()));
    }

    public static void main(String[] arguments) throws Exception {
        KafkaClients clients = new KafkaClients(arguments[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            clients.answer.clear();
            String end = ".";
            try {
                clients.run(Arrays.asList(line.split("\t")));
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                end = "!" + cause.getClass().getSimpleName() + ": " + String.valueOf(cause.getMessage()).replace('\n', ' ');
            }
            clients.answer.forEach(text -> System.out.println("=" + text));
            System.out.println(end);
            System.out.flush();
        }
        clients.admin.close();
    }

    private void run(List<String> words) throws Exception {
        List<String> rest = words.subList(1, words.size());
        switch (words.get(0)) {
            case "produce" -> produce(rest.get(0), rest.get(1), settings(rest.subList(2, rest.size())));
            case "consume" -> consume(rest.get(0), rest.get(1), Integer.parseInt(rest.get(2)), settings(rest.subList(3, rest.size())));
            case "create-topic" -> {
                NewTopic topic = new NewTopic(rest.get(0), optional(rest.get(1)), optional(rest.get(2)).map(Integer::shortValue));
                Map<String, String> values = new TreeMap<>();
                settings(rest.subList(3, rest.size())).forEach((key, value) -> values.put((String) key, (String) value));
                values.remove("bootstrap.servers");
                admin.createTopics(List.of(topic.configs(values))).all().get();
            }
            case "delete-topic" -> admin.deleteTopics(List.of(rest.get(0))).all().get();
            case "add-partitions" ->
                admin.createPartitions(Map.of(rest.get(0), NewPartitions.increaseTo(Integer.parseInt(rest.get(1))))).all().get();
            case "list-topics" -> admin.listTopics().names().get().stream().sorted().forEach(answer::add);
            case "describe-topic" -> describeTopic(rest.get(0));
            case "describe-cluster" -> {
                answer.add(admin.describeCluster().clusterId().get());
                answer.add(String.valueOf(admin.describeCluster().controller().get().id()));
                for (Node node : admin.describeCluster().nodes().get()) {
                    answer.add(node.id() + " " + node.host() + ":" + node.port());
                }
            }
            case "describe-configs" -> {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.valueOf(rest.get(0)), rest.get(1));
                for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                    answer.add(entry.name() + "=" + entry.value() + " " + entry.source());
                }
            }
            case "alter-config" -> {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, rest.get(0));
                AlterConfigOp change = rest.size() > 2
                    ? new AlterConfigOp(new ConfigEntry(rest.get(1), rest.get(2)), AlterConfigOp.OpType.SET)
                    : new AlterConfigOp(new ConfigEntry(rest.get(1), null), AlterConfigOp.OpType.DELETE);
                admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            }
            case "list-offsets" -> {
                OffsetSpec asked = switch (rest.get(2)) {
                    case "earliest" -> OffsetSpec.earliest();
                    case "latest" -> OffsetSpec.latest();
                    case "max-timestamp" -> OffsetSpec.maxTimestamp();
                    default -> OffsetSpec.forTimestamp(Long.parseLong(rest.get(2)));
                };
                TopicPartition partition = partition(rest);
                ListOffsetsResult.ListOffsetsResultInfo found = admin.listOffsets(Map.of(partition, asked)).all().get().get(partition);
                answer.add(found.offset() + " " + found.timestamp());
            }
            case "delete-records" -> {
                TopicPartition partition = partition(rest);
                RecordsToDelete wanted = RecordsToDelete.beforeOffset(Long.parseLong(rest.get(2)));
                answer.add(String.valueOf(admin.deleteRecords(Map.of(partition, wanted)).lowWatermarks().get(partition).get().lowWatermark()));
            }
            case "list-groups" -> admin.listGroups().all().get().forEach(group -> answer.add(group.groupId() + " " + group.groupState().map(Object::toString).orElse("?")));
            case "describe-group" -> {
                ConsumerGroupDescription group = admin.describeConsumerGroups(List.of(rest.get(0))).all().get().get(rest.get(0));
                answer.add(group.groupState() + " " + group.partitionAssignor());
                for (MemberDescription member : group.members()) {
                    answer.add(member.clientId() + " " + new java.util.TreeSet<>(member.assignment().topicPartitions().stream().map(Object::toString).toList()));
                }
            }
            case "group-offsets" ->
                new TreeMap<>(Map.copyOf(text(admin.listConsumerGroupOffsets(rest.get(0)).partitionsToOffsetAndMetadata().get())))
                    .forEach((name, offset) -> answer.add(name + " " + offset));
            case "reset-offset" ->
                admin.alterConsumerGroupOffsets(rest.get(2), Map.of(partition(rest), new OffsetAndMetadata(Long.parseLong(rest.get(3))))).all().get();
            case "delete-group" -> admin.deleteConsumerGroups(List.of(rest.get(0))).all().get();
            default -> throw new IllegalArgumentException("there is no command " + words.get(0));
        }
    }

    private Properties settings(List<String> pairs) {
        Properties values = new Properties();
        values.put("bootstrap.servers", servers);
        for (String pair : pairs) {
            int at = pair.indexOf('=');
            values.put(pair.substring(0, at), pair.substring(at + 1));
        }
        return values;
    }

    private static Optional<Integer> optional(String number) {
        return number.equals("-1") ? Optional.empty() : Optional.of(Integer.valueOf(number));
    }

    private static TopicPartition partition(List<String> words) {
        return new TopicPartition(words.get(0), Integer.parseInt(words.get(1)));
    }

    private static Map<String, Long> text(Map<TopicPartition, OffsetAndMetadata> offsets) {
        Map<String, Long> named = new TreeMap<>();
        offsets.forEach((name, offset) -> named.put(name.toString(), offset.offset()));
        return named;
    }

    private void describeTopic(String name) throws Exception {
        TopicDescription topic = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        for (TopicPartitionInfo partition : topic.partitions()) {
            answer.add(partition.partition() + " leader=" + (partition.leader() == null ? -1 : partition.leader().id())
                + " replicas=" + partition.replicas().stream().map(Node::id).toList()
                + " isr=" + partition.isr().stream().map(Node::id).toList());
        }
    }

    /** Answers with the partition and the offset of each record, in the order of the file. */
    private void produce(String topic, String path, Properties settings) throws Exception {
        List<Future<RecordMetadata>> outcomes = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
             DataInputStream records = new DataInputStream(new BufferedInputStream(new FileInputStream(path)))) {
            while (true) {
                int partition;
                try {
                    partition = records.readInt();
                } catch (EOFException end) {
                    break;
                }
                long time = records.readLong();
                byte[] key = bytes(records);
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    topic, partition < 0 ? null : partition, time < 0 ? null : time, key, bytes(records));
                for (int left = records.readInt(); left > 0; left--) {
                    record.headers().add(new String(bytes(records), StandardCharsets.UTF_8), bytes(records));
                }
                outcomes.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> outcome : outcomes) {
                RecordMetadata stored = outcome.get();
                answer.add(stored.partition() + " " + stored.offset());
            }
        }
    }

    /** Subscribes, stores so many records in a file, commits and leaves. */
    private void consume(String topic, String path, int count, Properties settings) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             DataOutputStream records = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(path)))) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            int found = 0;
            while (found < count) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException(found + " of " + count + " records");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    records.writeInt(record.partition());
                    records.writeLong(record.offset());
                    records.writeLong(record.timestamp());
                    write(records, record.key());
                    write(records, record.value());
                    records.writeInt(record.headers().toArray().length);
                    for (Header header : record.headers()) {
                        write(records, header.key().getBytes(StandardCharsets.UTF_8));
                        write(records, header.value());
                    }
                    found++;
                }
            }
            answer.add(consumer.groupMetadata().generationId() + " " + consumer.assignment().size());
            consumer.commitSync();
        }
    }

    private static byte[] bytes(DataInputStream records) throws Exception {
        int size = records.readInt();
        return size < 0 ? null : records.readNBytes(size);
    }

    private static void write(DataOutputStream records, byte[] data) throws Exception {
        records.writeInt(data == null ? -1 : data.length);
        if (data != null) {
            records.write(data);
        }
    }
}
