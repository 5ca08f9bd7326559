package pyreplog;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's store as master or slave, driven by lines on standard input; every line is answered by one.
 *
 * Arguments: master|slave, directory, HA port, bytes of a commit log file, [host:port of the master].
 * Lines: "put COUNT BYTES" (answers the end of the log), "max", "dispatched" (bytes that the queues are behind, messages
 * in the queue), "follow HOST:PORT", "await END" (nanoseconds from the first byte to that end), "stop".
 */
public final class Store {
    private static final String TOPIC = "pyreplog";

    private final DefaultMessageStore store;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);

    private Store(String role, String directory, int port, int fileBytes) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setBrokerRole(role.equals("slave") ? BrokerRole.SLAVE : BrokerRole.ASYNC_MASTER);
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + "/commitlog");
        config.setMappedFileSizeCommitLog(fileBytes);
        config.setMappedFileSizeConsumeQueue(200_000);
        config.setMaxHashSlotNum(10_000);
        config.setMaxIndexNum(40_000);
        config.setHaListenPort(port);
        config.setDiskMaxUsedSpaceRatio(95);
        config.setTimerWheelEnable(false);
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerId(role.equals("slave") ? 1 : 0);
        store = new DefaultMessageStore(
                config, new BrokerStatsManager("pyreplog", true), null, broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
    }

    public static void main(String[] arguments) throws Exception {
        Store store = new Store(arguments[0], arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        System.out.println("@ ready");
        for (String line = lines.readLine(); line != null && !line.equals("stop"); line = lines.readLine()) {
            System.out.println("@ " + store.answer(line.split(" ")));
        }
        store.store.shutdown();
        System.out.println("@ stopped");
        System.exit(0);
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "put":
                put(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                return Long.toString(store.getMaxPhyOffset());
            case "max":
                return Long.toString(store.getMaxPhyOffset());
            case "dispatched":
                return store.dispatchBehindBytes() + " " + store.getMaxOffsetInQueue(TOPIC, 0);
            case "follow":
                store.updateHaMasterAddress(words[1]); // in the configuration it has no effect, RocketMQ issue 6153
                return "following";
            case "await":
                return Long.toString(await(Long.parseLong(words[1])));
            default:
                return "unknown";
        }
    }

    private long await(long end) throws InterruptedException {
        long begin = 0;
        while (store.getMaxPhyOffset() < end) {
            if (begin == 0 && store.getMaxPhyOffset() > 0) {
                begin = System.nanoTime();
            }
            Thread.sleep(1);
        }
        return System.nanoTime() - begin;
    }

    private void put(int count, int bytes) {
        byte[] body = new byte[bytes];
        new Random(bytes).nextBytes(body);
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(TOPIC);
            message.setQueueId(0);
            message.setBody(body);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(host);
            message.setStoreHost(host);
            message.setKeys("key" + i);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                throw new IllegalStateException("put: " + result);
            }
        }
    }
}
