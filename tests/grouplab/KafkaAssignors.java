import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Asks Apache Kafka's assignors. A line is "assignor topics members": topics as "1:4,2:6" (number and partitions), members as
 * "m1=1,2;1.0,1.3|m2=...", which is what a member subscribes to and what it had. The answer: "m1=1.0,1.1|m2=...".
 *
 * Or it asks RE2/J: "regex expression name", answered with true, false, or an error.
 */
public class KafkaAssignors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            try {
                out.append(parts[0].equals("regex") ? matches(parts[1], parts[2]) : assign(parts[0], parts[1], parts[2]));
            } catch (Exception error) {
                out.append("error ").append(String.valueOf(error).replace('\n', ' '));
            }
            out.append('\n');
        }
        System.out.print(out);
    }

    private static String matches(String expression, String name) {
        return String.valueOf(com.google.re2j.Pattern.compile(expression).matcher(name).matches());
    }

    private static Uuid topic(String number) {
        return new Uuid(0L, Long.parseLong(number));
    }

    private static String assign(String assignor, String topics, String members) {
        Map<Uuid, Integer> counts = new HashMap<>();
        for (String part : topics.split(",")) {
            counts.put(topic(part.split(":")[0]), Integer.parseInt(part.split(":")[1]));
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> specs = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        for (String member : members.split("\\|")) {
            String name = member.split("=", -1)[0];
            String[] told = member.split("=", -1)[1].split(";", -1);
            Set<Uuid> subscribed = Arrays.stream(told[0].split(",")).map(KafkaAssignors::topic).collect(Collectors.toSet());
            Map<Uuid, Set<Integer>> had = new HashMap<>();
            for (String partition : told[1].isEmpty() ? new String[0] : told[1].split(",")) {
                Uuid id = topic(partition.split("\\.")[0]);
                int number = Integer.parseInt(partition.split("\\.")[1]);
                had.computeIfAbsent(id, key -> new HashSet<>()).add(number);
                inverted.computeIfAbsent(id, key -> new HashMap<>()).put(number, name);
            }
            subscriptions.add(subscribed);
            specs.put(name, new MemberSubscriptionAndAssignmentImpl(Optional.empty(), Optional.empty(), subscribed, new Assignment(had)));
        }
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid id) {
                return counts.getOrDefault(id, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid id, int partition) {
                return Set.of();
            }
        };
        ConsumerGroupPartitionAssignor chosen = assignor.equals("range") ? new RangeAssignor() : new UniformAssignor();
        SubscriptionType type = subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        Map<String, MemberAssignment> assigned =
            chosen.assign(new GroupSpecImpl(specs, type, inverted), describer).members();
        Map<String, TreeSet<String>> result = new TreeMap<>();
        assigned.forEach((name, assignment) -> assignment.partitions().forEach((id, partitions) -> partitions.forEach(
            partition -> result.computeIfAbsent(name, key -> new TreeSet<>()).add(id.getLeastSignificantBits() + "." + partition))));
        return result.entrySet().stream().map(entry -> entry.getKey() + "=" + String.join(",", entry.getValue()))
            .collect(Collectors.joining("|"));
    }
}
