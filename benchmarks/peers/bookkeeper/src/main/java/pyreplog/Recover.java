package pyreplog;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.net.BookieId;

/**
 * Fills ledgers, keeps some open, adds to one, and watches AutoRecovery until no closed ledger names a bookie.
 *
 * Arguments: metadata URI, ensemble, write quorum, ack quorum, ledgers, entries of each, entry size, open ledgers.
 * Lines of standard input: "quiet SECONDS", "recover BOOKIE LIMIT", "end". Each is answered with a line of JSON.
 */
public final class Recover {
    private static final int WINDOW = 64;
    private static final int ADDS_PER_S = 200;

    private final BookKeeper client;
    private final int[] quorums;
    private final byte[] value;
    private final List<Long> closed = new ArrayList<>();
    private final List<LedgerHandle> open = new ArrayList<>();

    private Recover(BookKeeper client, int[] quorums, int size) {
        this.client = client;
        this.quorums = quorums;
        this.value = new byte[size];
        new Random(size).nextBytes(value);
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setThrottleValue(0);
        int[] numbers = Arrays.stream(arguments).skip(1).mapToInt(Integer::parseInt).toArray();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (BookKeeper client = new BookKeeper(configuration)) {
            Recover recover = new Recover(client, Arrays.copyOf(numbers, 3), numbers[5]);
            recover.fill(numbers[3], numbers[4], numbers[6]);
            System.out.printf("{\"ledgers\": %d}%n", recover.closed.size());
            for (String line = lines.readLine(); line != null && !line.equals("end"); line = lines.readLine()) {
                String[] words = line.split(" ");
                if (words[0].equals("quiet")) {
                    System.out.printf("{\"p99_ns\": %d}%n", recover.quiet(Integer.parseInt(words[1])));
                } else {
                    System.out.println(recover.recover(BookieId.parse(words[1]), Integer.parseInt(words[2])));
                }
            }
        }
    }

    private LedgerHandle create() throws Exception {
        return client.createLedger(quorums[0], quorums[1], quorums[2], DigestType.CRC32C, new byte[0]);
    }

    /** Makes closed ledgers, several at a time, and some that stay open with an entry each. */
    private void fill(int ledgers, int entries, int idle) throws Exception {
        Semaphore room = new Semaphore(WINDOW);
        AtomicReference<Integer> failure = new AtomicReference<>();
        for (int number = 0; number < ledgers; number++) {
            room.acquire();
            client.asyncCreateLedger(quorums[0], quorums[1], quorums[2], DigestType.CRC32C, new byte[0],
                (code, handle, context) -> {
                    if (code != BKException.Code.OK) {
                        failure.compareAndSet(null, code);
                        room.release();
                        return;
                    }
                    synchronized (closed) {
                        closed.add(handle.getId());
                    }
                    AtomicInteger left = new AtomicInteger(entries);
                    for (int entry = 0; entry < entries; entry++) {
                        handle.asyncAddEntry(value, (added, same, id, nothing) -> {
                            if (added != BKException.Code.OK) {
                                failure.compareAndSet(null, added);
                            }
                            if (left.decrementAndGet() == 0) {
                                handle.asyncClose((done, it, none) -> room.release(), null);
                            }
                        }, null);
                    }
                }, null, null);
            if (failure.get() != null) {
                throw BKException.create(failure.get());
            }
        }
        room.acquire(WINDOW);
        for (int number = 0; number < idle; number++) {
            LedgerHandle handle = create();
            handle.addEntry(value);
            open.add(handle);
        }
    }

    /** Adds at a fixed rate for so many seconds; the 99th percentile. */
    private long quiet(int seconds) throws Exception {
        try (Adds adds = new Adds()) {
            Thread.sleep(seconds * 1000L);
            return adds.stop();
        }
    }

    /** Adds at the same rate until no closed ledger names the bookie, or until the limit in seconds. */
    private String recover(BookieId bookie, int limit) throws Exception {
        LedgerManager manager = client.getLedgerManager();
        try (Adds adds = new Adds()) {
            long begin = System.nanoTime();
            long end = begin + limit * 1_000_000_000L;
            List<Long> left = new ArrayList<>(closed);
            int needed = -1;
            while (!left.isEmpty() && System.nanoTime() < end) {
                List<CompletableFuture<?>> reads = new ArrayList<>();
                List<Long> still = java.util.Collections.synchronizedList(new ArrayList<>());
                for (Long ledger : left) {
                    reads.add(manager.readLedgerMetadata(ledger).thenAccept(found -> {
                        LedgerMetadata metadata = found.getValue();
                        if (metadata.getAllEnsembles().values().stream().anyMatch(one -> one.contains(bookie))) {
                            still.add(ledger);
                        }
                    }));
                }
                CompletableFuture.allOf(reads.toArray(new CompletableFuture<?>[0])).get(60, TimeUnit.SECONDS);
                needed = needed < 0 ? still.size() : needed;
                left = new ArrayList<>(still);
                Thread.sleep(200);
            }
            double seconds = (System.nanoTime() - begin) * 1e-9;
            long p99 = adds.stop();
            long[] held = held();
            return String.format(
                "{\"seconds\": %.2f, \"needed\": %d, \"left\": %d, \"p99_ns\": %d, \"fenced\": %d, \"failed\": %d,"
                + " \"entries_held\": %d}",
                seconds, needed, left.size(), p99, fenced(), adds.failed.get(), held[0]);
        }
    }

    /** Entries of closed ledgers that bookies hold, copies counted. */
    private long[] held() throws Exception {
        long total = 0;
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client, new org.apache.bookkeeper.conf.ClientConfiguration())) {
            for (BookieId bookie : admin.getAvailableBookies()) {
                for (Long ledger : closed) {
                    try {
                        var ids = admin.asyncGetListOfEntriesOfLedger(bookie, ledger).get(60, TimeUnit.SECONDS);
                        long count = ids.getTotalNumOfAvailableEntries();
                        total += Math.max(count, 0);
                    } catch (java.util.concurrent.ExecutionException unknown) {
                        continue; // the bookie has nothing of it
                    }
                }
            }
        }
        return new long[] {total};
    }

    /** How many of the open ledgers no longer take entries of their writers. */
    private int fenced() {
        int count = 0;
        for (LedgerHandle handle : open) {
            try {
                handle.addEntry(value);
            } catch (Exception error) {
                count++;
            }
        }
        return count;
    }

    /** Adds to a ledger of its own, one at a time at a fixed rate. */
    private final class Adds implements AutoCloseable {
        private final AtomicInteger failed = new AtomicInteger();
        private final List<Long> taken = new ArrayList<>();
        private final LedgerHandle ledger = create();
        private volatile boolean over;
        private final Thread thread = new Thread(this::run);

        private Adds() throws Exception {
            thread.start();
        }

        private void run() {
            long next = System.nanoTime();
            while (!over) {
                long begin = System.nanoTime();
                if (begin < next) {
                    java.util.concurrent.locks.LockSupport.parkNanos(next - begin);
                    continue;
                }
                next = Math.max(next + 1_000_000_000L / ADDS_PER_S, begin - 1_000_000_000L);
                try {
                    ledger.addEntry(value);
                } catch (Exception error) {
                    failed.incrementAndGet();
                }
                taken.add(System.nanoTime() - begin);
            }
        }

        private long stop() throws InterruptedException {
            over = true;
            thread.join();
            long[] sorted = taken.stream().mapToLong(Long::longValue).sorted().toArray();
            return sorted.length == 0 ? 0 : sorted[(int) (0.99 * (sorted.length - 1))];
        }

        @Override
        public void close() throws Exception {
            stop();
            ledger.close();
        }
    }
}
