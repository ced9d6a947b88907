import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Has Apache Kafka's cleaner clean logs. Each line of the standard input is a job: directory, now, first dirty
 * offset, first uncleanable offset, delete.retention.ms, segment bytes, bytes of the offset map. The answer is
 * the offset up to which the log is clean then, and the milliseconds it took by the clock and of CPU.
 */
public class CleanLog {
    public static void main(String[] args) throws Exception {
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            String[] job = line.split("\t");
            Map<String, String> config = new HashMap<>();
            config.put("cleanup.policy", "compact");
            config.put("delete.retention.ms", job[4]);
            config.put("internal.segment.bytes", job[5]);
            config.put("index.interval.bytes", "512");
            config.put("segment.ms", String.valueOf(Long.MAX_VALUE));
            UnifiedLog log = UnifiedLog.create(new File(job[0]), new LogConfig(config), 0L, 0L, scheduler,
                new BrokerTopicStats(), Time.SYSTEM, Integer.MAX_VALUE,
                new ProducerStateManagerConfig(86400000, false), 600000, new LogDirFailureChannel(1), true,
                Optional.empty());
            log.updateHighWatermark(log.logEndOffset());
            Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(Integer.parseInt(job[6])), 262144, 10485760, 0.9,
                new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
            long started = System.nanoTime();
            long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
            Map.Entry<Long, CleanerStats> done = cleaner.doClean(
                new LogToClean(log, Long.parseLong(job[2]), Long.parseLong(job[3]), true), Long.parseLong(job[1]));
            cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpu;
            System.out.println(done.getKey() + "\t" + (System.nanoTime() - started) / 1000000 + "\t" + cpu / 1000000);
            System.out.flush();
            log.close();
        }
        scheduler.shutdown();
    }
}
